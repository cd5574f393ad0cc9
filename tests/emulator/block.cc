#include "tests/emulator/block.h"

#include "common/check.h"
#include "tests/emulator/random.h"
#include "tests/emulator/shared_memory.h"
#include "tests/emulator/traffic.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace rubato::emulator {

Here here;
constinit thread_local Running* running = nullptr;

namespace {

enum class State : std::uint8_t { kFresh, kReady, kAtBarrier, kAtWarp, kDone };

// A thread of the block.
struct Thread {
  State state = State::kFresh;
  Strand* strand = nullptr;
  Site site;           // where it waits
  WarpCall call;       // kAtWarp
  bool meets = false;  // by meet_warp
  std::uint16_t turn = 0;
};

class Block {
 public:
  Block(const cudaLaunchConfig_t& config, const Kernel& kernel, std::uint32_t work);
  cudaError_t run_grid();

  // From the fiber of a thread.
  Thread& current() { return threads_[current_]; }
  std::size_t current_index() const { return current_; }
  std::size_t first_of_warp(std::size_t thread) const { return thread / kWarpLanes * kWarpLanes; }
  Thread& lane(std::size_t first, std::size_t i) { return threads_[first + i]; }
  std::uint64_t given(std::size_t thread) const { return given_[thread]; }
  void suspend(State state, Site site);
  void run_thread() { kernel_.run(kernel_.arguments); }
  void stop(cudaError_t error) { error_ = error; }

 private:
  void run_block();
  void run_warp(std::size_t first);
  void resume(std::size_t thread);
  bool complete_warp_call(std::size_t first);
  bool has_come(const Thread& thread, const WarpCall& call) const;
  void report_stuck(std::size_t first);
  bool pass_barrier();
  std::size_t end_of_warp(std::size_t first) const {
    return std::min(first + kWarpLanes, threads_.size());
  }

  const cudaLaunchConfig_t& config_;
  const Kernel& kernel_;
  std::vector<Thread> threads_;
  std::vector<std::uint64_t> given_;  // by thread, what the lanes of the last complete call gave
  std::vector<std::size_t> warps_;    // their first threads, in the order of their turns
  std::size_t current_ = 0;
  Running running_;
  cudaError_t error_ = cudaSuccess;
};

Block* running_block = nullptr;
std::uint32_t last_phase = 0;

void run_current_thread() { running_block->run_thread(); }

Block::Block(const cudaLaunchConfig_t& config, const Kernel& kernel, std::uint32_t work)
    : config_(config), kernel_(kernel) {
  const dim3& size = config.blockDim;
  threads_.resize(std::size_t{size.x} * size.y * size.z);
  given_.resize(threads_.size());
  for (std::size_t first = 0; first < threads_.size(); first += kWarpLanes) warps_.push_back(first);
  running_.arguments = reinterpret_cast<std::uintptr_t>(kernel.arguments);
  running_.argument_bytes = kernel.argument_bytes;
  running_.shared = shared_begin();
  running_.dynamic_shared_bytes = config.dynamicSmemBytes;
  running_.now.work = work;
  running_.now.kernel_phase = last_phase + 1;
}

cudaError_t Block::run_grid() {
  const dim3& grid = config_.gridDim;
  std::vector<std::size_t> blocks(std::size_t{grid.x} * grid.y * grid.z);
  std::iota(blocks.begin(), blocks.end(), std::size_t{0});
  shuffle(blocks);
  here.threads = config_.blockDim;
  here.blocks = grid;
  for (const std::size_t block : blocks) {
    here.block = {static_cast<unsigned>(block % grid.x),
                  static_cast<unsigned>(block / grid.x % grid.y),
                  static_cast<unsigned>(block / grid.x / grid.y)};
    run_block();
    if (error_ != cudaSuccess) break;
  }
  return error_;
}

void Block::run_block() {
  running_.now.block_phase = running_.now.stamp.phase = ++last_phase;
  std::ranges::fill(threads_, Thread());
  do {
    shuffle(warps_);
    for (const std::size_t first : warps_) {
      run_warp(first);
      if (error_ != cudaSuccess) return;
    }
  } while (pass_barrier());
  if (is_counting()) end_counted_block(kernel_.code);
}

// Until each lane waits for the block's barrier or is done.
void Block::run_warp(std::size_t first) {
  std::array<std::size_t, kWarpLanes> order;
  std::iota(order.begin(), order.end(), first);
  shuffle(order);
  const auto is_ready = [](const Thread& thread) {
    return thread.state == State::kFresh || thread.state == State::kReady;
  };
  do {
    for (const std::size_t thread : order) {
      if (thread >= threads_.size() || !is_ready(threads_[thread])) continue;
      resume(thread);
      if (error_ != cudaSuccess) return;
    }
  } while (complete_warp_call(first));
  report_stuck(first);
}

void Block::resume(std::size_t index) {
  Thread& thread = threads_[index];
  if (thread.state == State::kFresh) thread.strand = Strand::take();
  current_ = index;
  const dim3& size = config_.blockDim;
  here.thread = {static_cast<unsigned>(index % size.x),
                 static_cast<unsigned>(index / size.x % size.y),
                 static_cast<unsigned>(index / size.x / size.y)};
  running_.now.stamp.thread = static_cast<std::uint16_t>(index);
  running_.now.stamp.turn = thread.turn;
  running_.strand = thread.strand;
  running = &running_;
  const bool is_done = thread.strand->resume();
  running = nullptr;
  if (is_done) {
    thread.state = State::kDone;
    Strand::give(thread.strand);
  }
}

void Block::suspend(State state, Site site) {
  current().state = state;
  current().site = site;
  current().strand->suspend();
}

bool Block::has_come(const Thread& thread, const WarpCall& call) const {
  return thread.state == State::kAtWarp && thread.call.mask == call.mask &&
         are_same(thread.site, call.site);
}

// Lets the lanes of one call go on, if all have come. False: there is none.
bool Block::complete_warp_call(std::size_t first) {
  const std::size_t lanes = end_of_warp(first) - first;
  const unsigned whole = lanes == kWarpLanes ? ~0u : (1u << lanes) - 1;
  for (std::size_t leader = 0; leader < lanes; ++leader) {
    if (lane(first, leader).state != State::kAtWarp) continue;
    const WarpCall call = lane(first, leader).call;
    const auto is_in = [&](std::size_t i) { return (call.mask >> i & 1) != 0; };
    bool all_came = (call.mask & ~whole) == 0;
    for (std::size_t i = 0; i < lanes && all_came; ++i)
      all_came = !is_in(i) || has_come(lane(first, i), call);
    if (!all_came) continue;
    for (std::size_t i = 0; i < lanes; ++i) {
      if (!is_in(i)) continue;
      Thread& one = lane(first, i);
      given_[first + i] = one.call.value;
      one.state = State::kReady;
      if (one.meets && call.mask == whole) ++one.turn;
    }
    return true;
  }
  return false;
}

// A lane that waits for others of its warp now waits for ever.
void Block::report_stuck(std::size_t first) {
  for (std::size_t i = first; i < end_of_warp(first); ++i) {
    const Thread& thread = threads_[i];
    if (thread.state != State::kAtWarp) continue;
    report(FaultKind::kMask, "thread " + std::to_string(i) + " waits at " + text_of(thread.site) +
                                 " for a lane of its mask that does not come");
    error_ = cudaErrorLaunchFailure;
    return;
  }
}

// False: the block has ended.
bool Block::pass_barrier() {
  const auto waits = [](const Thread& thread) { return thread.state == State::kAtBarrier; };
  const auto first = std::ranges::find_if(threads_, waits);
  if (first == threads_.end()) return false;
  for (const Thread& thread : threads_) {
    if (waits(thread) && are_same(thread.site, first->site)) continue;
    report(FaultKind::kDivergent,
           "threads wait at the barrier of " + text_of(first->site) + " while others " +
               (waits(thread) ? "wait at that of " + text_of(thread.site) : "have returned"));
    error_ = cudaErrorLaunchFailure;
    return false;
  }
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    thread.turn = 0;
  }
  running_.now.stamp.phase = ++last_phase;
  return true;
}

}  // namespace

cudaError_t run_grid(const cudaLaunchConfig_t& config, const Kernel& kernel, std::uint32_t work) {
  CHECK(running_block == nullptr);
  Strand::set_body(run_current_thread);
  Block block(config, kernel, work);
  running_block = &block;
  const cudaError_t error = block.run_grid();
  running_block = nullptr;
  return error;
}

void meet_block(Site site) { running_block->suspend(State::kAtBarrier, site); }

void meet_warp(unsigned mask, Site site) {
  running_block->current().meets = true;
  std::uint64_t all[kWarpLanes];
  gather({mask, 0, lane_in_warp(), site}, all);
  running_block->current().meets = false;
  running->now.stamp.turn = running_block->current().turn;
}

void gather(const WarpCall& call, std::uint64_t (&all)[kWarpLanes]) {
  Block& block = *running_block;
  const std::size_t first = block.first_of_warp(block.current_index());
  const auto names = [&](int lane) { return (call.mask >> lane & 1) != 0; };
  if (!names(lane_in_warp()) || !names(call.source)) {
    report(FaultKind::kMask, text_of(call.site) + ": thread " +
                                 std::to_string(block.current_index()) +
                                 (names(lane_in_warp()) ? " reads a lane that its mask leaves out"
                                                        : " is left out by its own mask"));
    stop_kernel(cudaErrorLaunchFailure);
  }
  block.current().call = call;
  block.suspend(State::kAtWarp, call.site);
  for (int lane = 0; lane < kWarpLanes; ++lane)
    all[lane] = names(lane) ? block.given(first + static_cast<std::size_t>(lane)) : 0;
}

int lane_in_warp() { return static_cast<int>(running_block->current_index() % kWarpLanes); }

void stop_kernel(cudaError_t error) {
  running_block->stop(error);
  for (;;) running_block->current().strand->suspend();
}

}  // namespace rubato::emulator
