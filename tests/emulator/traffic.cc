#include "tests/emulator/traffic.h"

#include "tests/emulator/block.h"
#include "tests/emulator/faults.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <vector>

namespace rubato::emulator {

namespace {

constexpr std::uintptr_t kSector = 32;
constexpr std::uintptr_t kBanks = 32;

// Code, how often its lanes have been there, warp.
using Place = std::tuple<std::uint32_t, std::uint32_t, int>;

struct State {
  bool is_counting = false;
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint32_t> visits;  // by code and thread
  std::map<Place, std::vector<Request>> requests;                           // of this block
  std::map<const void*, Traffic> traffic;                                   // by kernel
  std::map<const void*, std::array<std::set<std::uintptr_t>, 2>> touched;   // words: read, written
};
State& state() {
  static State& all = *new State;
  return all;
}

using Words = std::set<std::uintptr_t>;
void add_words(Words& words, const Request& request) {
  const std::uintptr_t end = request.address + request.bytes;
  for (std::uintptr_t at = request.address; at < end; at += kWordBytes)
    words.insert(at / kWordBytes);
}

std::uint64_t pieces(std::size_t words, std::uintptr_t of) { return (words + of - 1) / of; }

void add_global(Traffic& traffic, std::array<Words, 2>& touched,
                const std::vector<Request>& lanes) {
  Words words, sectors;
  for (const Request& lane : lanes) add_words(words, lane);
  touched[lanes[0].write ? 1 : 0].insert(words.begin(), words.end());
  (lanes[0].write ? traffic.stored : traffic.loaded) += words.size() * kWordBytes;
  for (const std::uintptr_t word : words) sectors.insert(word * kWordBytes / kSector);
  traffic.sectors += sectors.size();
  traffic.ideal_sectors += pieces(words.size(), kSector / kWordBytes);
}

// Lanes that are served in one go.
void add_wavefronts(Traffic& traffic, const Words& words) {
  std::array<std::uint64_t, kBanks> of_bank = {};
  for (const std::uintptr_t word : words) ++of_bank[word % kBanks];
  traffic.wavefronts += *std::ranges::max_element(of_bank);
  traffic.ideal_wavefronts += pieces(words.size(), kBanks);
}

void add_shared(Traffic& traffic, const std::vector<Request>& lanes) {
  const std::size_t at_once = kBanks * kWordBytes / std::max(lanes[0].bytes, kWordBytes);
  std::map<std::size_t, Words> groups;
  for (const Request& lane : lanes) add_words(groups[lane.thread % kWarpLanes / at_once], lane);
  for (const auto& [group, words] : groups) add_wavefronts(traffic, words);
}

}  // namespace

void start_counting() {
  state() = {};
  state().is_counting = true;
}

std::uint64_t touched_bytes() {
  std::uint64_t words = 0;
  for (const auto& [kernel, sets] : state().touched) words += sets[0].size() + sets[1].size();
  return words * kWordBytes;
}

std::map<std::string, Traffic> counted() {
  std::map<std::string, Traffic> by_name;
  for (const auto& [kernel, traffic] : state().traffic) by_name[name_of_kernel(kernel)] = traffic;
  state() = {};
  return by_name;
}

bool is_counting() { return state().is_counting; }

void count(const Request& request) {
  State& all = state();
  const std::uint32_t nth = all.visits[{request.code, request.thread}]++;
  all.requests[{request.code, nth, request.thread / kWarpLanes}].push_back(request);
}

void end_counted_block(const void* kernel) {
  State& all = state();
  Traffic& traffic = all.traffic[kernel];
  for (const auto& [place, lanes] : all.requests)
    if (lanes[0].is_shared)
      add_shared(traffic, lanes);
    else
      add_global(traffic, all.touched[kernel], lanes);
  all.requests.clear();
  all.visits.clear();
}

}  // namespace rubato::emulator
