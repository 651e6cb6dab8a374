"""Opens Keras networks: keras.applications by name, and `.keras` files in safe mode."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from lolat.errors import MissingPackageError, NetworkError, arg
from lolat.io.forms import not_a_network, unknown_network
from lolat.readers.bundled import check_name
from lolat.readers.size import SIDE, Size, sides_of
from lolat.units import one_line, shortened


def import_keras() -> Any:
    """Import Keras quietly: TensorFlow's C++ code prints to stderr at any log level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with contextlib.ExitStack() as stack:
            saved, muffled = os.dup(2), stack.enter_context(tempfile.TemporaryFile())
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, 2)
            os.dup2(muffled.fileno(), 2)
            import keras
    except ImportError as error:
        why = f"Keras with TensorFlow is needed for this and cannot be imported ({error})"
        raise MissingPackageError(why, "tensorflow") from error
    return keras


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Create Keras variables with a shape but no memory inside this context.

    Keras lists variables to be initialized later; the new variables are removed from this list.
    """
    import keras
    from keras.src.backend.common import global_state

    listed = "uninitialized_variables"
    before = list(global_state.get_global_attribute(listed) or ())
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(listed, before)


@contextlib.contextmanager
def _building(weights: bool) -> Iterator[None]:
    """Silence Keras' warnings, which repeat errors or concern only the authors of a network."""
    variables = contextlib.nullcontext() if weights else without_weights()
    with warnings.catch_warnings(action="ignore"), variables:
        yield


def application(name: str, size: Size, weights: bool) -> Any:
    """Build a network of keras.applications with random weights for images of `size`."""
    check_name(f"keras:{name}")
    keras = import_keras()
    by_lower = {n.lower(): n for n in dir(keras.applications) if n[0].isupper()}
    known = by_lower.get(name.lower())
    if known is None:
        raise unknown_network(f"keras:{name}", by_lower.values(), "keras.io/api/applications")
    make, sides = getattr(keras.applications, known), size.images
    shape = sides if len(sides) == 3 else (*sides_of(sides), 3)
    try:
        with _building(weights):
            model = make(weights=None, **({"input_shape": shape} if sides else {}))
            if not sides and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(SIDE, SIDE, 3))
    except Exception as error:  # what an unfit size raises differs from network to network
        first, *last = shape
        remedy = f"; Keras has the channels last: {arg('input_size')} {','.join(map(str, (*last, first)))}"
        raise NetworkError(
            f"keras:{known} cannot be built at this {arg('input_size')}: {one_line(error)}"
            f"{remedy if first in (1, 3) else ''}"
        ) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """Open a network in a `.keras` file; a file with code in it is refused (Keras' safe mode)."""
    shown = shortened(path)
    if not os.path.isfile(path):
        raise not_a_network(path)
    import_keras()
    try:
        return _opened(path, weights)
    except Exception as error:  # a damaged file can fail anywhere in Keras
        raise NetworkError(
            f"{shown!r} cannot be opened: {one_line(error)}; expected a file that model.save wrote; "
            "give a network with code of its own (an own or a Lambda layer) as package.module:callable"
        ) from error


def _opened(path: str, weights: bool) -> Any:
    """Load the network in a `.keras` file; Keras' exceptions pass through."""
    import keras

    with _building(weights):
        if weights:
            return keras.saving.load_model(path, compile=False, safe_mode=True)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        compiled = config.pop("compile_config", None)
        try:
            model = keras.saving.deserialize_keras_object(copy.deepcopy(config), safe_mode=True)
            model._compile_config = SimpleNamespace(config=compiled or {})
            return model
        except ValueError as error:
            if "stateless scope" not in str(error):
                raise
    with _building(weights=True):  # a stateful layer makes its states, which must have memory
        return keras.saving.deserialize_keras_object(config, safe_mode=True)
