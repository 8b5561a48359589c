"""All readers of data sets, imported together when the first is needed: they need torch, pandas and numpy.

Together, so that the code that reads tables is that whose digest `datasets.kept` compares.
"""

from datasets.cifar import read_cifar10
from datasets.dataset import own_data_set
from datasets.files import read_table as read_file
from datasets.images import read_digits, read_fashion_mnist, read_tiny_imagenet
from datasets.kept import kept
from datasets.natural import plain_csv as natural_csv
from datasets.natural import read_natural
from datasets.shakespeare import plain_csv as plays_csv
from datasets.shakespeare import read_shakespeare
from datasets.tabular import read_breast_cancer, read_diabetes, read_table

__all__ = [
    "kept",
    "natural_csv",
    "own_data_set",
    "plays_csv",
    "read_breast_cancer",
    "read_cifar10",
    "read_diabetes",
    "read_digits",
    "read_fashion_mnist",
    "read_file",
    "read_natural",
    "read_shakespeare",
    "read_table",
    "read_tiny_imagenet",
]
