// Streams, events and the order of work. Work that is enqueued runs at the last allowed moment:
// when the host waits for its stream or for an event behind it, or when other such work must come
// after it. Waiting for everything runs streams in an order drawn from the seed, a piece of work at
// a time.
//
// Each piece of work knows what it comes after, by a vector clock: all that was enqueued before on
// its stream, what its stream was told to wait for, and what the host had waited for. The host
// counts as one thread. So a missing wait is found although nothing ever runs at once.
//
// An error of work that ran stays: no later call succeeds (until reset()). One lock guards all of
// it: take it in every call from outside, for its whole length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace rubato::emulator {

std::recursive_mutex& lock();

// What a piece of work does when its time comes; `id` is its own. cudaErrorNotReady: it waits for
// somebody else, and is to be asked again; a host that waits for it and cannot be freed is a fault.
using Run = std::function<cudaError_t(std::uint32_t id)>;
// What reports call it: "a copy"; "@" for the kernel at `code` (faults.h).
struct WorkName {
  std::string text;
  const void* code = nullptr;
};
// Null: the default stream. cudaErrorInvalidResourceHandle: no such stream.
cudaError_t enqueue(cudaStream_t stream, const WorkName& name, Run run);

// Whether a piece of work is ordered before another, or is the same, or 0 (none).
bool is_before(std::uint32_t work, std::uint32_t later);
// "a copy on stream 2", and what its '@' stands for.
std::string text_of_work(std::uint32_t work, std::vector<const void*>& places);

cudaStream_t make_stream();
cudaEvent_t make_event();
bool drop_stream(cudaStream_t stream);  // its work runs first
bool drop_event(cudaEvent_t event);
bool is_stream(cudaStream_t stream);
bool is_event(cudaEvent_t event);
std::size_t live_streams();
std::size_t live_events();

void record(cudaEvent_t event, cudaStream_t stream);
void hold(cudaStream_t stream, cudaEvent_t event);  // its later work comes after the event
bool has_passed(cudaEvent_t event);
void run_one_before(cudaEvent_t event);
// The host waits; the error of all work so far.
cudaError_t wait_for(cudaStream_t stream);
cudaError_t wait_for(cudaEvent_t event);
cudaError_t wait_for_all();

// A piece of work touches a range of device or host memory: notes it, and reports what it clashes
// with. False: it is device memory that no allocation holds.
bool sweep(std::uint32_t work, const void* address, std::size_t bytes, bool write);

// The first error of work that ran.
cudaError_t sticky_error();

// ---- For tests ----

// The `nth` piece of work from now on (from 0) fails with that error instead of running.
void fail_work(std::size_t nth, cudaError_t error);
// As in a new process: no stream, no event, no error. Memory stays.
void reset();

}  // namespace rubato::emulator
