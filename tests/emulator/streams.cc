#include "tests/emulator/streams.h"

#include "tests/emulator/device_memory.h"
#include "tests/emulator/faults.h"
#include "tests/emulator/random.h"
#include "tests/emulator/shadow.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace rubato::emulator {

namespace {

// By stream's number, how much of each is before; 0 is the host.
using Clock = std::vector<std::uint32_t>;

void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// What is known of a piece of work for ever.
struct About {
  std::size_t stream = 0;
  std::uint32_t time = 0;
  Clock clock;
  WorkName name;
};

// A place in a stream: all that was enqueued up to a number.
struct Place {
  std::size_t stream = 0;
  std::uint64_t count = 0;
};

struct Item {
  std::uint32_t work = 0;  // 0: waits for `place`
  Run run;
  Place place;
};

struct Stream {
  std::deque<Item> items;
  std::uint64_t enqueued = 0;
  std::uint64_t passed = 0;
  Clock clock;
};

struct Event {
  bool is_recorded = false;
  Place place;
  Clock clock;
};

struct State {
  std::map<std::size_t, Stream> streams = {{1, {}}};  // 1: the default stream
  std::map<std::size_t, Event> events;
  std::size_t next_stream = 2;
  std::size_t next_event = 1;
  Clock host;
  std::vector<About> works = {{}};
  cudaError_t sticky = cudaSuccess;
  std::optional<std::size_t> until_failure;
  cudaError_t failure = cudaSuccess;
};
State& state() {
  static State& all = *new State;
  return all;
}

constexpr std::size_t kDefault = 1;
std::size_t number_of(cudaStream_t stream) {
  return stream == nullptr ? kDefault : reinterpret_cast<std::size_t>(stream);
}
std::size_t number_of(cudaEvent_t event) { return reinterpret_cast<std::size_t>(event); }

void run_until(const Place& place);

cudaError_t outcome_of(const Item& item) {
  State& all = state();
  if (all.until_failure && (*all.until_failure)-- == 0) {
    all.until_failure.reset();
    return all.failure;
  }
  return item.run(item.work);
}

// After an error nothing runs any more, but places are passed. False: it is not ready, and is still
// the next one.
bool run_one(Stream& stream) {
  Item item = std::move(stream.items.front());
  stream.items.pop_front();
  if (item.work == 0) {
    run_until(item.place);
  } else if (state().sticky == cudaSuccess) {
    const cudaError_t outcome = outcome_of(item);
    if (outcome == cudaErrorNotReady) {
      stream.items.push_front(std::move(item));
      return false;
    }
    state().sticky = outcome;
  }
  ++stream.passed;
  return true;
}

// For a wait that would not come back, perhaps for ever.
void run_one_now(Stream& stream) {
  if (run_one(stream)) return;
  std::vector<const void*> places;
  report(FaultKind::kBlocked, text_of_work(stream.items.front().work, places) +
                                  " is not ready, and the host waits for it without a way out");
  stream.items.pop_front();
  ++stream.passed;
}

void run_until(const Place& place) {
  const auto found = state().streams.find(place.stream);
  if (found == state().streams.end()) return;  // its work ran when it was dropped
  if (found->second.passed >= place.count) return;
  const DeviceMemoryOpen open;  // once for all of it: opening takes longer than a small kernel
  while (found->second.passed < place.count) run_one_now(found->second);
}

}  // namespace

std::recursive_mutex& lock() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

cudaError_t enqueue(cudaStream_t stream, const WorkName& name, Run run) {
  State& all = state();
  const std::size_t number = number_of(stream);
  const auto found = all.streams.find(number);
  if (found == all.streams.end()) return cudaErrorInvalidResourceHandle;
  Stream& its = found->second;
  merge(its.clock, all.host);
  if (its.clock.size() <= number) its.clock.resize(number + 1);
  const std::uint32_t time = ++its.clock[number];
  const auto id = static_cast<std::uint32_t>(all.works.size());
  all.works.push_back({number, time, its.clock, name});
  its.items.push_back({id, std::move(run), {}});
  ++its.enqueued;
  return cudaSuccess;
}

bool is_before(std::uint32_t work, std::uint32_t later) {
  if (work == 0 || work == later) return true;
  const About& one = state().works[work];
  const Clock& clock = state().works[later].clock;
  return one.stream < clock.size() && one.time <= clock[one.stream];
}

std::string text_of_work(std::uint32_t work, std::vector<const void*>& places) {
  const About& about = state().works[work];
  if (about.name.code != nullptr) places.push_back(about.name.code);
  return about.name.text + " on stream " + std::to_string(about.stream);
}

cudaStream_t make_stream() {
  State& all = state();
  all.streams[all.next_stream];
  return reinterpret_cast<cudaStream_t>(all.next_stream++);
}
cudaEvent_t make_event() {
  State& all = state();
  all.events[all.next_event];
  return reinterpret_cast<cudaEvent_t>(all.next_event++);
}
bool drop_stream(cudaStream_t stream) {
  if (stream == nullptr || !is_stream(stream)) return false;
  (void)wait_for(stream);
  state().streams.erase(number_of(stream));
  return true;
}
bool drop_event(cudaEvent_t event) { return state().events.erase(number_of(event)) == 1; }
bool is_stream(cudaStream_t stream) { return state().streams.contains(number_of(stream)); }
bool is_event(cudaEvent_t event) { return state().events.contains(number_of(event)); }
std::size_t live_streams() { return state().streams.size() - 1; }
std::size_t live_events() { return state().events.size(); }

void record(cudaEvent_t event, cudaStream_t stream) {
  Stream& its = state().streams.at(number_of(stream));
  merge(its.clock, state().host);
  state().events.at(number_of(event)) = {true, {number_of(stream), its.enqueued}, its.clock};
}

void hold(cudaStream_t stream, cudaEvent_t event) {
  const Event& its = state().events.at(number_of(event));
  if (!its.is_recorded) return;
  Stream& later = state().streams.at(number_of(stream));
  merge(later.clock, its.clock);
  later.items.push_back({0, {}, its.place});
  ++later.enqueued;
}

bool has_passed(cudaEvent_t event) {
  const Event& its = state().events.at(number_of(event));
  const auto found = state().streams.find(its.place.stream);
  const bool passed = found == state().streams.end() || found->second.passed >= its.place.count;
  if (passed) merge(state().host, its.clock);
  return passed;
}

void run_one_before(cudaEvent_t event) {
  if (!has_passed(event))
    (void)run_one(state().streams.at(state().events.at(number_of(event)).place.stream));
}

cudaError_t wait_for(cudaStream_t stream) {
  Stream& its = state().streams.at(number_of(stream));
  run_until({number_of(stream), its.enqueued});
  merge(state().host, its.clock);
  return state().sticky;
}

cudaError_t wait_for(cudaEvent_t event) {
  const Event& its = state().events.at(number_of(event));
  if (its.is_recorded) run_until(its.place);
  merge(state().host, its.clock);
  return state().sticky;
}

cudaError_t wait_for_all() {
  State& all = state();
  std::optional<DeviceMemoryOpen> open;
  std::set<Stream*> not_ready;  // of another member of this process, as if on another device
  for (;;) {
    std::vector<Stream*> waiting;
    for (auto& [number, stream] : all.streams)
      if (!stream.items.empty() && !not_ready.contains(&stream)) waiting.push_back(&stream);
    if (waiting.empty()) break;
    if (!open) open.emplace();
    Stream* const next = waiting[random_below(waiting.size())];
    if (!run_one(*next)) not_ready.insert(next);
  }
  for (const auto& [number, stream] : all.streams) merge(all.host, stream.clock);
  return all.sticky;
}

bool sweep(std::uint32_t work, const void* address, std::size_t bytes, bool write) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::vector<const void*> places;
  if (is_device_address(at)) {
    const Allocation* allocation = allocation_of(at);
    if (allocation == nullptr || !allocation->holds(at, bytes)) {
      const std::string text = text_of_work(work, places) + (write ? " writes " : " reads ");
      report(FaultKind::kOutside, text + std::to_string(bytes) + " bytes that no allocation holds");
      return false;
    }
  }
  const std::uint32_t other = shadow().sweep(at, bytes, write, work);
  if (other != 0) {
    std::string text = text_of_work(work, places) + " is not ordered after ";
    text += text_of_work(other, places);
    report(FaultKind::kStreamRace, text, places);
  }
  return true;
}

cudaError_t sticky_error() { return state().sticky; }

void fail_work(std::size_t nth, cudaError_t error) {
  state().until_failure = nth;
  state().failure = error;
}

void reset() {
  const std::lock_guard guard(lock());
  State& all = state();
  for (const auto& [number, stream] : all.streams) merge(all.host, stream.clock);
  std::vector<About> works = std::move(all.works);
  Clock host = std::move(all.host);
  const std::size_t next = all.next_stream;
  all = State();
  all.works = std::move(works);
  all.host = std::move(host);
  all.next_stream = next;
}

}  // namespace rubato::emulator
