"""Real data sets and their partition into clients; `datasets.catalog.load` reads one."""

from typing import TYPE_CHECKING, Any

if not TYPE_CHECKING:  # or a checker would take every name for one of ours
    #: What a script asks of the package of this name by Hugging Face.
    HUGGING_FACE = {"Dataset", "DatasetDict", "IterableDataset", "load_dataset", "load_from_disk"}

    def __getattr__(name: str) -> Any:
        """Refuse a name, and point to where it is if it is one of Hugging Face."""
        if name in HUGGING_FACE:
            raise ImportError(
                f"{name} is in the package datasets of Hugging Face, which that of fedfrontier hides here: install "
                "the two in separate environments; what save_to_disk writes in one, arrow:FOLDER reads in the other"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
