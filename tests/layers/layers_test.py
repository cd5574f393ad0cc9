"""The layers check, shown to find what is planted."""

import pathlib
import tempfile
import unittest

from layers import LAW, check_tree, read_law

SMALL_LAW = """
common:
scheduler/model: common
kube: common   # generic
operator/control: common scheduler kube
"""


class Layers(unittest.TestCase):
    def check(self, files, law=SMALL_LAW):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {LAW: law, **files}.items():
                file = pathlib.Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return check_tree(folder)[1]

    def test_a_planted_violation_is_told_with_file_and_line(self):
        wrong = self.check({"kube/x.cc": '#include <vector>\n#include "scheduler/model/job.h"\n'})
        self.assertEqual(wrong, ["kube/x.cc:2: kube may not include scheduler/model"])

    def test_a_granted_folder_grants_what_lies_below(self):
        self.assertEqual(self.check({"operator/control/x.cc": '#include "scheduler/model/job.h"\n'}), [])

    def test_itself_and_subfolders_are_free(self):
        files = {"common/net/a.h": '#include "common/result.h"\n', "common/b.h": '#  include "common/net/a.h"\n'}
        self.assertEqual(self.check(files), [])

    def test_common_includes_nothing_of_ours(self):
        wrong = self.check({"common/net/a.cc": '#include "kube/client.h"\n'})
        self.assertEqual(wrong, ["common/net/a.cc:1: common may not include kube"])

    def test_an_arrow_is_one_way(self):
        wrong = self.check({"scheduler/model/a.h": '#include "operator/control/b.h"\n'})
        self.assertEqual(wrong, ["scheduler/model/a.h:1: scheduler/model may not include operator/control"])

    def test_a_new_folder_needs_a_line(self):
        wrong = self.check({"scheduler/magic/a.h": "\n", "common/b.h": '#include "worker/new/c.h"\n'})
        self.assertEqual(wrong, [
            "common/b.h:1: the folder of worker/new/c.h has no line in cmake/layers.txt",
            "scheduler/magic/a.h: its folder has no line in cmake/layers.txt"])

    def test_includes_are_written_from_the_root(self):
        wrong = self.check({"common/a.cc": '#include "a.h"\n', "common/a.h": ""})
        self.assertEqual(wrong, ['common/a.cc:1: write it from the root: "common/a.h"'])

    def test_a_line_may_stand_for_one_file(self):
        law = ("common:\nscheduler/plan.h: common\nscheduler/low: common scheduler/plan.h\n"
               "scheduler: common scheduler\n")
        wrong = self.check({"scheduler/low/x.cc": '#include "scheduler/plan.h"\n#include "scheduler/run.h"\n',
                            "scheduler/plan.h": '#include "scheduler/low/x.h"\n'}, law)
        self.assertEqual(wrong, ["scheduler/low/x.cc:2: scheduler/low may not include scheduler",
                                 "scheduler/plan.h:1: scheduler/plan.h may not include scheduler/low"])

    def test_protobuf_imports_count_too(self):
        wrong = self.check({"common/a.proto": 'import "kube/b.proto";\n'})
        self.assertEqual(wrong, ["common/a.proto:1: common may not include kube"])

    def test_a_law_that_names_an_unknown_folder_is_refused(self):
        with self.assertRaisesRegex(ValueError, "common may include nowhere, which has no line"):
            read_law("common: nowhere\n")


if __name__ == "__main__":
    unittest.main()
