// RequestQueue: a TorchProgram whose answers come from a script in another thread of this process:
// requests and replies are JSON texts (docs/pytorch.md, "The border to the engine"). The script
// takes a request when it has time, so all of PyTorch runs in its one thread, and answers it.
//
// Threads: the step thread calls what TorchProgram says; the script's thread calls next() and
// reply(); end() and stop() are any thread's.
#pragma once

#include "common/clock.h"
#include "worker/pytorch/torch_program.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::json {
class Value;
}

namespace rubato::worker {

// How long a script shows signs of life by itself: while it answers one request (a model is
// compiled in its first micro-batch, say), and in the body of its loop. Beyond, it hangs.
constexpr auto kAnswerMost = 2min;
constexpr auto kBodyMost = 10min;

class RequestQueue : public TorchProgram {
 public:
  explicit RequestQueue(const Clock& clock) : clock_(clock) {}
  // ---- The script's side ----
  // Waits up to `limit` for a request; nothing: none came. "end" is the last one, and comes again.
  std::optional<std::string> next(std::chrono::milliseconds limit);
  // To the last request. One that cannot be read is an error of the script.
  void reply(const std::string& text);
  // The script asks no more: what waits for it fails.
  void stop();

  // Grows once a second while the script is busy, within the limits above. Any thread.
  std::uint64_t signs_of_life();

  // ---- The engine's ----
  // The loop is over, and what is asked from now on fails. The first word holds. `finished`: the
  // last step is committed.
  void end(bool finished, const std::string& reason);
  Result<TorchSetup> configure(const std::string& training) override;
  Status bind(const TorchMemory& memory) override;
  Status init() override;
  Status loaded(std::uint64_t step) override;
  Result<MicroBatchLoss> compute(const MicroBatch& micro_batch,
                                 std::span<const MicroBatch> ahead) override;
  Result<double> apply(std::uint64_t step, float factor, double loss, double norm,
                       MemberPlace place) override;
  Result<double> validate(std::uint32_t micro) override;
  void wait_until_idle() override;
  bool is_over() override;

 private:
  Result<json::Value> ask(const json::Value& request);
  void be(MonoTime now, bool is_waiting, Duration most);

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> request_;  // not yet taken
  std::optional<std::string> reply_;
  bool is_waiting_ = false;  // the script, for a request
  MonoTime busy_since_{};    // while it is not
  Duration busy_most_ = kAnswerMost;
  Duration busy_{0};  // in all before that
  bool is_stopped_ = false;
  std::string end_;
  bool has_heard_end_ = false;
};

}  // namespace rubato::worker
