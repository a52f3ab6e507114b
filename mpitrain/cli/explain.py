"""What `--print-config` prints: the resolved configuration, in which comments show the layers of a preset."""

import tomli_w

from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.models import table
from mpitrain.training.inputs import design_of


def explained(config: Config) -> str:
    """TOML that reads back as the configuration. The comments, as keys of [model] instead of those above them, give the
    same network. Raises BadInput naming a key of [model]."""
    text = configuration.to_toml(config)
    if config.model.import_ or (design := design_of(config)).preset is None:
        return text
    keys = tomli_w.dumps({"output": design.output, "l2": design.l2, "l2_biases": design.l2_biases}).splitlines()
    lines = [f"# {line}\n" for line in (*keys, *table.to_lines(design.layers))]
    before, section, after = text.partition("[model]\n")
    own, _, rest = after.partition("\n\n")
    comment = "".join(["# As layers of your own, instead of the keys above:\n", *lines])
    return f"{before}{section}{own}\n{comment}\n{rest}"
