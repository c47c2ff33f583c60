"""Pickles a class of __main__, also in other processes, and prints what a script sees of itself."""

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
    for method in (sys.argv[1:2] == ["pool"] and ["spawn", "forkserver"]) or []:
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert type(pool.map(make, [1])[0]) is Sample
    print(sys.argv, __file__, __name__, __package__, __doc__, sys.path[0])
    print(sorted(globals()), __builtins__, globals().get("__annotations__"))
    from __main__ import Sample as Again

    assert Again is Sample
