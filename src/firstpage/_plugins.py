"""Objects of the user's own, named in a recipe as `package.module:Name`."""

from importlib import import_module

from firstpage._spelling import suggest
from firstpage.errors import UserError


def import_object(name: str, what: str) -> object:
    """Import the object that `package.module:Name` names. Nothing is called; check what it is before use.

    Args:
        name: Module and attribute. The module must be importable: installed, or in a folder of PYTHONPATH.
        what: The setting that holds the name, for messages: `model.backbone`, `loss.name`.

    Raises:
        UserError: The name is malformed, the module cannot be imported, or it has no such attribute.

    >>> import_object("json.decoder:JSONDecoder", "loss.name")
    <class 'json.decoder.JSONDecoder'>
    >>> import_object("my_losses:Huber", "loss.name")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss.name='my_losses:Huber': no module 'my_losses'; install it, or add ...
    >>> import_object("json:JSONDecodr", "loss.name")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss.name='json:JSONDecodr': module json has no 'JSONDecodr'; did you mean ...
    """
    setting = f"{what}={name!r}"
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UserError(f"{setting}: write package.module:Name, such as my_package.my_module:MyClass")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UserError(
                f"{setting}: no module {missing!r}; install it, or add its folder to PYTHONPATH"
            ) from None
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(
            f"{setting}: importing {module_name} failed ({reason}); correct that module"
        ) from error
    if not hasattr(module, attribute):
        public = [known for known in dir(module) if not known.startswith("_")]
        hint = suggest(attribute, public) or "correct the name after the colon"
        raise UserError(f"{setting}: module {module_name} has no {attribute!r}; {hint.strip()}")
    return getattr(module, attribute)
