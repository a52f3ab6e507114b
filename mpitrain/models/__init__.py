"""Networks: layers over views of one flat vector."""
