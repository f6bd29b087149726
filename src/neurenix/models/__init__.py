"""Published models by name, and models of your own configuration, for planning and training.

``get`` returns a configuration, ``build`` a model, ``abstract`` a model without arrays, which can
be preflighted at any size.
"""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix.models.base import Model as Model
from neurenix.models.configs import abstract as abstract
from neurenix.models.configs import build as build
from neurenix.models.configs import get as get
from neurenix.models.configs import names as names
from neurenix.models.decoder import Decoder as Decoder
from neurenix.models.decoder import DecoderConfig as DecoderConfig
from neurenix.models.encoder import Encoder as Encoder
from neurenix.models.encoder import EncoderConfig as EncoderConfig
from neurenix.models.losses import TokenLosses as TokenLosses
from neurenix.models.remat import Remat as Remat
from neurenix.models.resnet import ResNet as ResNet
from neurenix.models.resnet import ResNetConfig as ResNetConfig
from neurenix.models.rope import LinearScaling as LinearScaling
from neurenix.models.rope import RopeScaling as RopeScaling
from neurenix.models.rope import YarnScaling as YarnScaling
from neurenix.models.stack import FullAttention as FullAttention
from neurenix.models.stack import Latent as Latent
from neurenix.models.stack import StackConfig as StackConfig
from neurenix.models.vision import VisionConfig as VisionConfig
from neurenix.models.vision import VisionTransformer as VisionTransformer

_BY_NAME = "models.build(name), of one of models.names()"
# Names of Keras, torchvision and Transformers → what to use here.
_ELSEWHERE = {
    "AutoModel": _BY_NAME,
    "AutoModelForCausalLM": _BY_NAME,
    "Sequential": "nx.nn.Sequential(*layers)",
    "get_model": _BY_NAME,
    "list_models": "models.names()",
    "load_model": "model.load(path), of a model that is built first",
    "save_model": "model.save(path)",
} | {name.replace("-", "").replace(".", "_"): f'models.build("{name}")' for name in names()}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    _OWN = f"{__name__}."
    _NAMES = [n for n, v in globals().items() if getattr(v, "__module__", "").startswith(_OWN)]
    __getattr__ = names_of(__name__, _NAMES, _ELSEWHERE)
