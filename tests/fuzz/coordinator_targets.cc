// What an agent may say to the coordinator, and the record that an earlier leader left.
#include "common/json.h"
#include "operator/coordinator/record.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/coordinator/fake_pods.h"

#include <string>

namespace rubato::coordinator {

namespace {

constexpr int kPods = 4;
constexpr int kOperations = 40;  // an input: more of them say nothing new, and slowly
constexpr auto kLong = 5s;       // beyond all deadlines of silence

std::string uid(unsigned pod) { return "uid-" + std::to_string(pod); }

// One thing that honest pods, or the controller, do.
void be_honest(FakePods& pods, fuzz::Choices& choices, int pod) {
  switch (choices.byte() % 12) {
    case 0:
      return pods.connect(pod);
    case 1:
      return pods.disconnect(pod);
    case 2:
      return pods.make_ready(pod);
    case 3:
      return pods.obey_forms();
    case 4:
      return pods.obey_aborts();
    case 5:
      return pods.obey_requests();
    case 6:
      return pods.commit_all();
    case 7:
      return pods.begin_anew(pod);
    case 8:
      return pods.exit(pod, 1, static_cast<int>(choices.byte() % 16));
    case 9:
      return pods.to_write ? pods.swap_done() : pods.beat();
    case 10:
      return pods.settle();
    default:
      return pods.change_wish([&](Wish& wish) {
        wish.min_workers = choices.byte() % kPods + 1;
        wish.stop = choices.byte() % 2 == 1;
        wish.pods[static_cast<std::size_t>(pod)].leaving = choices.byte() % 2 == 1;
      });
  }
}

// A Hello or a message of any content; who sends it is known by its token.
void be_hostile(FakePods& pods, fuzz::Choices& choices, unsigned pod) {
  const bool says_hello = choices.byte() % 2 == 0;
  const std::string_view bytes = choices.bytes();
  if (says_hello) {
    wire::Hello hello;
    if (!hello.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    hello.set_pod_uid(uid(pod));
    pods.machine.connected(pods.now, hello);
  } else {
    wire::AgentMessage message;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    pods.machine.message(pods.now, uid(pod), message);
  }
}

}  // namespace

// Agents that say anything, beside honest ones: the machine neither breaks an invariant of its own
// nor grows.
FUZZ_TARGET(coordinator) {
  fuzz::Choices choices(input);
  FakePods pods(kPods);
  pods.answers_probes = false;
  if (choices.byte() % 2 == 0) pods.start_training();
  for (int i = 0; i < kOperations && !choices.empty(); ++i) {
    const unsigned what = choices.byte();
    const unsigned pod = what / 4 % kPods;
    if (what % 4 == 0) {
      const unsigned time = choices.byte();
      pods.after(time == 255 ? Duration(kLong) : 2ms * time);
    } else if (what % 4 == 1) {
      be_hostile(pods, choices, pod);
    } else {
      be_honest(pods, choices, static_cast<int>(pod));
    }
    if (pods.machine.must_reload()) return;
  }
  pods.after(200ms);
  CHECK(pods.view().changes.size() <= kChangesKept);
  CHECK(pods.view().failures.size() <= kFailuresKept);
}

// What is written back is what was read; and a job goes on from it.
FUZZ_TARGET(record) {
  const auto value = json::parse(input);
  if (!value.ok()) return;
  const auto record = record_from(*value);
  if (!record.ok()) return;
  CHECK(record_from(to_json(*record)).value() == *record);
  FakePods pods(2, *record);
  pods.answers_probes = false;
  pods.start_training();
  pods.after(3s);
}

}  // namespace rubato::coordinator
