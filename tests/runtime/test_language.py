from __future__ import annotations

import threading

from fuseopt.runtime.language import _Sharing


def test_many_read_together_and_one_writes_alone():
    sharing, inside, worst = _Sharing(), [0, 0], []
    together = threading.Barrier(3)

    def read() -> None:
        with sharing.read():
            together.wait(timeout=10)
        for _ in range(200):
            with sharing.read():
                inside[0] += 1
                worst.append(inside[1])
                inside[0] -= 1

    def write() -> None:
        for _ in range(100):
            with sharing.write():
                inside[1] += 1
                worst.append(inside[1] - 1)
                inside[1] -= 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    threads += [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(t.is_alive() for t in threads)
    assert not any(worst)
