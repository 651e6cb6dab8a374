"""Metadata that is made when LoLat is packed: the project's addresses, and a README for a package index.

LOLAT_REPOSITORY is the address of the repository, which the release workflow sets. Without it the package
names none, the links of its README stay relative, and REPOSITORY in it stays as it is.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Changelog": "CHANGELOG.md", "Documentation": "docs/index.md", "Security": "SECURITY.md"}


class AddressesAndReadme(MetadataHookInterface):
    """Fills `urls` and `readme`, which pyproject.toml declares dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both in `metadata`; the version is in it already."""
        address = os.environ.get("LOLAT_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub("<!--.*?-->", "", text)  # cells of figures
        metadata["urls"] = {}
        if address:
            file = f"{address}/blob/v{metadata['version']}/"
            metadata["urls"] = {name: file + path for name, path in PAGES.items()}
            metadata["urls"] |= {"Repository": address, "Issues": f"{address}/issues"}
            text = text.replace("REPOSITORY", address)
            text = re.sub(r"(\]\()(?!\w+:|#)", rf"\1{file}", text)
            text = re.sub(r'(src=")(?!\w+:)', rf"\1{file.replace('/blob/', '/raw/')}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
