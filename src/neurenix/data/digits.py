"""The handwritten digits that ship with scikit-learn: real data with no download.

Owns this one data set and its split; it does not own what can be done with it
(``neurenix.data.dataset``).
"""

from __future__ import annotations

import numpy as np

from neurenix.data.dataset import Dataset

_TEST_IMAGES = 360
_SPLIT_SEED = 0


def digits() -> tuple[Dataset, Dataset]:
    """Return 1,437 images to train on and 360 to test with, always the same.

    The data are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin,
    C. Kaynak, UCI Machine Learning Repository, 1998), as ``sklearn.datasets.load_digits`` has it.

    Returns:
        ``(train, test)`` with ``"image"``: float32 of shape ``(8, 8, 1)``, 0 white to 1 black,
        and ``"label"``: int32, 0 to 9.

    Example:
        >>> train, test = nx.data.digits()
        >>> len(train), len(test)
        (1437, 360)
        >>> {name: (spec.shape, str(spec.dtype)) for name, spec in train.element_spec.items()}
        {'image': ((8, 8, 1), 'float32'), 'label': ((), 'int32')}
    """
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    # Shuffled before it is split: the images are ordered by writer.
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(targets))
    images = (np.asarray(pixels)[order].reshape(-1, 8, 8, 1) / 16.0).astype(np.float32)
    labels = np.asarray(targets)[order].astype(np.int32)
    return (
        Dataset.from_arrays({"image": images[:-_TEST_IMAGES], "label": labels[:-_TEST_IMAGES]}),
        Dataset.from_arrays({"image": images[-_TEST_IMAGES:], "label": labels[-_TEST_IMAGES:]}),
    )
