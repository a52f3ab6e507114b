"""cuDNN is no part of the stand-in, and the true one, where it is installed, takes no host memory."""

raise ModuleNotFoundError("the stand-in has no cuDNN", name="cudnn")
