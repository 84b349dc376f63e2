"""Calibrators as JSON files: settings, fitted attributes, what they were fitted on, and a checksum of all that."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import registry
from ..errors import InputError, bad_input

if TYPE_CHECKING:
    from ._calibrator import Calibrator

SCHEMA = 1
FORMAT = "reweigh calibrator"
LARGEST_FILE = 1 << 32


def registered_name(calibrator: Any) -> str:
    """The name a calibrator's class is registered under."""
    for entry in registry.entries("calibrator"):
        if entry.attribute == type(calibrator).__qualname__ and entry.module == type(calibrator).__module__:
            return entry.name
    return type(calibrator).__name__


# ---- values


def encode(value: Any) -> Any:
    """A value as JSON: arrays say their type, numbers that JSON lacks are words."""
    if isinstance(value, np.ndarray):
        kind = "float64" if value.dtype.kind == "f" else "bool" if value.dtype.kind == "b" else "int64"
        return {
            "array": [encode(item) for item in value.reshape(-1).tolist()],
            "shape": list(value.shape),
            "type": kind,
        }
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if isinstance(value, dict):
        return {"mapping": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise bad_input(
        "saving a calibrator",
        came=f"a setting or attribute of type {type(value).__name__} ({value!r})",
        expected="numbers, words, lists and arrays",
        mend="A function cannot be written to JSON: name a loss of the package instead, or keep the object in code.",
    )


def decode(value: Any) -> Any:
    """The value that `encode` wrote."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"number"}:
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["number"]]
    if set(value) == {"tuple"}:
        return tuple(decode(item) for item in value["tuple"])
    if set(value) == {"mapping"}:
        return {decode(key): decode(item) for key, item in value["mapping"]}
    if set(value) == {"array", "shape", "type"}:
        items = [decode(item) for item in value["array"]]
        return np.array(items, dtype={"float64": float, "int64": np.int64, "bool": bool}[value["type"]]).reshape(
            [int(length) for length in value["shape"]]
        )
    raise ValueError(f"an object with the keys {sorted(value)}")


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


# ---- files


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write a fitted calibrator; the file appears whole or not at all."""
    random_state = calibrator.get_params(deep=False).get("random_state")
    settings = calibrator.get_params(deep=False)
    if random_state is not None and not isinstance(random_state, (int, np.integer)):
        settings["random_state"] = None  # a generator has moved on; the rows it chose are among the attributes
    content = {
        "format": FORMAT,
        "schema": SCHEMA,
        "calibrator": registered_name(calibrator),
        "settings": {name: encode(value) for name, value in settings.items()},
        "fitted": {name: encode(getattr(calibrator, name)) for name in calibrator._state},
        "classes": len(calibrator.classes_),
        "columns": [str(name) for name in getattr(calibrator, "feature_names_in_", [])],
        "head": calibrator.head_,
        "fitted_on": encode(calibrator.fitted_on_),
    }
    write_whole(Path(path), _text({**content, "sha256": _checksum(content)}) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary name beside the file, sync, rename: a failure leaves the old file as it was."""
    doing = f"writing {path}"
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise InputError(
            f"{doing} failed: {error.strerror or error}. An earlier file of that name is unchanged."
        ) from error
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # not every file system opens folders
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def load(path: str | Path) -> Calibrator:
    """Read a calibrator that `save` wrote; a damaged file is an error, never a wrong number."""
    path = Path(path)
    doing = f"reading the calibrator {path}"
    content = _parse(path, doing)
    claimed = content.pop("sha256", None)
    if content.get("format") != FORMAT or not isinstance(content.get("schema"), int):
        raise bad_input(doing, came="JSON that is no calibrator", expected=f'a file with "format": "{FORMAT}"')
    if content["schema"] != SCHEMA:
        raise bad_input(
            doing,
            came=f"schema version {content['schema']}",
            expected=f"{SCHEMA}",
            mend="A newer version of reweigh wrote it; update this one." if content["schema"] > SCHEMA else "",
        )
    if claimed != _checksum(content):
        raise bad_input(
            doing,
            came="content that does not match its SHA-256",
            expected="the file as it was written",
            mend="It was damaged or edited; fit the calibrator again or restore the file.",
        )
    try:
        return _restore(content)
    except InputError:
        raise
    except Exception as error:  # a file with a right checksum and wrong content: made by hand or by another version
        raise bad_input(
            doing, came=f"unusable content ({type(error).__name__}: {error})", expected="what save() writes"
        ) from error


def _parse(path: Path, doing: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise bad_input(doing, came=f"{path.stat().st_size} bytes", expected=f"at most {LARGEST_FILE}")
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{doing} failed: {error.strerror or error}.") from error
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise bad_input(doing, came=f"no valid JSON ({error})", expected="a file that save() wrote") from error
    if not isinstance(content, dict):
        raise bad_input(doing, came=f"a JSON {type(content).__name__}", expected="a JSON object")
    return content


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _restore(content: dict[str, Any]) -> Calibrator:
    if not isinstance(content["calibrator"], str):
        raise TypeError(f"the calibrator's name is {content['calibrator']!r}")
    if not isinstance(content["calibrator"], str):
        raise ValueError(f"the name {content['calibrator']!r}")
    kind = registry.get("calibrator", content["calibrator"])
    settings = {name: decode(value) for name, value in content["settings"].items()}
    calibrator = kind(**settings)
    fitted = {name: decode(value) for name, value in content["fitted"].items()}
    if set(fitted) != set(kind._state):
        raise ValueError(f"fitted attributes {sorted(fitted)} instead of {sorted(kind._state)}")
    for name, value in fitted.items():
        setattr(calibrator, name, value)
    calibrator.n_features_in_ = int(content["classes"])
    calibrator.classes_ = np.arange(calibrator.n_features_in_)
    if content["columns"]:
        calibrator.feature_names_in_ = np.array(content["columns"], dtype=object)
    calibrator.head_ = str(content["head"])
    calibrator.fitted_on_ = decode(content["fitted_on"])
    return calibrator
