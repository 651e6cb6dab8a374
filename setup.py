"""The one thing that pyproject.toml cannot say: the models of `models/` go into the wheel.

They are installed as `lolat/shipped/*.json`, while a checkout keeps them where people look for
them. Models learned on this machine, in `models/local/`, stay out.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithModels(build_py):
    """Copies the models beside the modules; an editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "lolat", "shipped")
            self.mkpath(str(target))
            for model in self._models():
                self.copy_file(str(model), str(target / model.name))

    def get_source_files(self) -> list[str]:
        """What a source distribution has to hold."""
        return [*super().get_source_files(), *(path.as_posix() for path in self._models())]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        target = Path(self.build_lib, "lolat", "shipped")
        models = [str(target / model.name) for model in self._models()]
        return [*super().get_outputs(include_bytecode), *models]

    @staticmethod
    def _models() -> list[Path]:
        return sorted(Path("models").glob("*.json"))


setup(cmdclass={"build_py": BuildWithModels})
