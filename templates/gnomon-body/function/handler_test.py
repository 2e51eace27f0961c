"""Runs while the image is built; `--build-arg TEST_ENABLED=false` leaves it out.

Here: python -m unittest discover --top-level-directory .. --pattern '*_test.py'
"""

import unittest
from types import SimpleNamespace

from function.handler import handle, handle_batch


def event(body):
    return SimpleNamespace(body=body, method="POST", path="/", headers={}, query={})


class HandlerTest(unittest.TestCase):
    def test_it_counts_words(self):
        self.assertEqual(handle(event(b"the shadow  of a gnomon"), None), {"words": 5})

    def test_a_batch_has_one_answer_for_each_request_in_order(self):
        self.assertEqual(handle_batch([event(b"a"), event(b""), event(b"a b")], None), [{"words": 1}, {"words": 0}, {"words": 2}])

    def test_one_bad_request_does_not_fail_the_others(self):
        answers = handle_batch([event(b"a"), event(b"\xff"), event(b"a")], None)
        self.assertEqual([answer.get("statusCode", 200) for answer in answers], [200, 400, 200])


if __name__ == "__main__":
    unittest.main()
