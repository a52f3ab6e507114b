"""The typed configuration: a TOML file, overrides on the command line, defaults of the algorithm.

Every key is checked: unknown keys, for which the error names the nearest known one, and values of the wrong type or
range are errors. `to_toml` writes the resolved configuration, which resolves to itself.
"""

from mpitrain.config.names import readable
from mpitrain.config.rules import FIRST, load, resolve, with_optimizer
from mpitrain.config.tables import CHOSEN, Config, Data, ModelOptions, Pretraining, RunOptions
from mpitrain.config.toml import flat, overrides_of, parse_toml, read_toml, set_key, to_toml, with_keys
from mpitrain.sampling.stages import Stage, Training
