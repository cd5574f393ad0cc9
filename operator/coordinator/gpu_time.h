// GpuTime: where the GPU time of a job goes. The job's machine says at the end of each pass how
// many GPUs the job holds, how many of them are members, and what these do; the time until the next
// pass is booked as that. Plain arithmetic; bounded by nothing but time.
//
//   held     GPUs of bound pods that have not ended, whatever they do, times seconds
//   useful   members while steps are committed, less what they wait for the slowest. Taken off
//            again: the open step when something breaks (what was booked since the last commit, or
//            since it was taken off before), and steps that are done again after a return to a
//            checkpoint. Evaluations count as useful.
//   goodput  useful / held
//
// What is held and not useful is lost to one cause: `queue` (pods of a gang that start, up to the
// first commit), `rescale` (newcomers that start and pull state, leavers that go, the stall of a
// planned change), `failure` (from the last commit before to the first after, less one step; parked
// time; work done again), `checkpoint` (the one before a stop, the last one, and what workers need
// to leave), `straggling` (of each step, what members wait for the one that computes longest).
#pragma once

#include "common/clock.h"

#include <cstdint>

namespace rubato::coordinator {

enum class GpuUse { kUseful, kQueue, kRescale, kFailure, kCheckpoint };

struct GpuSeconds {
  double useful = 0;
  double queue = 0;
  double rescale = 0;
  double failure = 0;
  double checkpoint = 0;
  double straggling = 0;

  double lost() const { return queue + rescale + failure + checkpoint + straggling; }
  double held() const { return useful + lost(); }
  GpuSeconds& operator+=(const GpuSeconds& other);
  bool operator==(const GpuSeconds&) const = default;
};

class GpuTime {
 public:
  explicit GpuTime(MonoTime now) : since_(now), last_(now) {}

  // Books the time since the call before.
  void advance(MonoTime now);
  // From now on. Of the GPUs held, those whose agent is lost are a failure's; the others that are
  // no members are rescaling while members train, and share the members' use otherwise.
  // `waiting`: the share of useful time, 0 to 1, in which members wait for the slowest.
  void set(std::uint32_t held, std::uint32_t members, std::uint32_t lost, GpuUse use,
           double waiting = 0);
  // A step is committed: what was booked until now is not of the open step.
  void commit();
  // The open step is lost: what was booked as useful or straggling for it is a failure's.
  void lose_open_step();
  // Corrects what was booked; moves no more than was.
  void move(GpuUse from, GpuUse to, double gpu_seconds);

  MonoTime since() const { return since_; }
  const GpuSeconds& total() const { return total_; }

 private:
  double& of(GpuUse use);

  MonoTime since_;
  MonoTime last_;
  std::uint32_t held_ = 0;
  std::uint32_t members_ = 0;
  std::uint32_t lost_ = 0;
  GpuUse use_ = GpuUse::kQueue;
  double waiting_ = 0;
  GpuSeconds total_;
  double open_useful_ = 0;  // of total_: since the last commit, and not lost yet
  double open_straggling_ = 0;
};

}  // namespace rubato::coordinator
