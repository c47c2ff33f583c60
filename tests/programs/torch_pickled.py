"""A script that pickles objects of its own class, and prints its arguments and global names.

With the argument "pool", spawned processes pickle objects, too.
"""

import atexit
import multiprocessing
import pickle
import sys


class Sample:
    pass


def make(x):
    return Sample()


@atexit.register
def at_exit():
    assert isinstance(pickle.loads(pickle.dumps(Sample())), Sample)
    if __name__ == "__main__":
        print("pickled")


if __name__ == "__main__":
    for method in ("spawn", "forkserver") if sys.argv[1:2] == ["pool"] else ():
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert type(pool.map(make, [1])[0]) is Sample
    print(sys.argv, __file__, __name__, __package__, __doc__, sys.path[0])
    print(sorted(globals()), __builtins__, globals().get("__annotations__"))
    from __main__ import Sample as Again

    assert Again is Sample
