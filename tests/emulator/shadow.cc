#include "tests/emulator/shadow.h"

#include "tests/emulator/block.h"
#include "tests/emulator/streams.h"

#include <algorithm>

namespace rubato::emulator {

namespace {

int warp_of(const Stamp& stamp) { return stamp.thread / kWarpLanes; }

bool clashes(const Stamp& other, const Moment& now) {
  if (other.phase < now.kernel_phase) return false;  // another kernel, or none
  if (other.phase < now.block_phase) return true;
  if (other.phase != now.stamp.phase || other.thread == now.stamp.thread) return false;
  return warp_of(other) != warp_of(now.stamp) || other.turn >= now.stamp.turn;
}

}  // namespace

Shadow& shadow() {
  static Shadow& all = *new Shadow;
  return all;
}

std::uint32_t Works::record(std::uint32_t work, bool write) {
  std::uint32_t clash = 0;
  const auto look_at = [&](std::uint32_t other) {
    if (!is_before(other, work)) clash = other;
  };
  look_at(write_);
  if (write) {
    for (const std::uint32_t read : reads_) look_at(read);
    write_ = work;
    reads_ = {};
  } else {
    // A reading that this one comes after is covered by it.
    const auto place =
        std::ranges::find_if(reads_, [&](std::uint32_t read) { return is_before(read, work); });
    if (place != reads_.end()) *place = work;
  }
  return clash;
}

Clash Threads::record(const Moment& now, bool write) {
  Clash clash;
  const auto look_at = [&](const Stamp& other) {
    if (clashes(other, now)) clash = {Clash::kThread, other, 0};
  };
  look_at(write_);
  if (!write) {
    add_read(now);
    return clash;
  }
  for (const Stamp& read : reads_) look_at(read);
  look_at(foreign_read_);
  write_ = now.stamp;
  reads_ = {};
  foreign_read_ = {};
  return clash;
}

// Keeps as many readers as any later writer could clash with: one of another block, and of the
// latest phase one, and a second one of another warp or else of the same turn.
void Threads::add_read(const Moment& now) {
  Stamp& latest = reads_[0];
  Stamp& second = reads_[1];
  if (latest.phase < now.kernel_phase)
    foreign_read_ = {};
  else if (latest.phase < now.block_phase)
    foreign_read_ = latest;
  if (latest.phase < now.stamp.phase) {
    reads_ = {now.stamp, Stamp()};
    return;
  }
  const bool has_two_warps = second.phase != 0 && warp_of(second) != warp_of(latest);
  if (latest.thread == now.stamp.thread) {
    latest = now.stamp;
  } else if (warp_of(latest) != warp_of(now.stamp)) {
    if (!has_two_warps || second.turn < now.stamp.turn) second = now.stamp;
  } else if (latest.turn < now.stamp.turn) {
    latest = now.stamp;
    if (!has_two_warps) second = {};
  } else if (!has_two_warps) {
    second = now.stamp;
  }
}

void Shadow::Page::make_cells() {
  if (cells != nullptr) return;
  cells = std::make_unique<std::array<Cell, kPageWords>>();
  for (Cell& cell : *cells) cell.works = works;
}

Shadow::Page& Shadow::page_of(std::uintptr_t address) {
  const std::uintptr_t number = address / kPageBytes;
  Recent& recent = recent_[number % recent_.size()];
  if (recent.page == nullptr || recent.number != number) recent = {number, &pages_[number]};
  return *recent.page;
}

Clash Shadow::touch(std::uintptr_t address, bool write, const Moment& now) {
  Page& page = page_of(address);
  page.make_cells();
  Cell& cell = (*page.cells)[address / kWordBytes % kPageWords];
  if (const std::uint32_t other = cell.works.record(now.work, write); other != 0)
    return {Clash::kWork, {}, other};
  return cell.threads.record(now, write);
}

std::uint32_t Shadow::sweep(std::uintptr_t address, std::size_t bytes, bool write,
                            std::uint32_t work) {
  std::uint32_t clash = 0;
  const auto note = [&](std::uint32_t other) { clash = other != 0 ? other : clash; };
  const std::uintptr_t end = address + bytes;
  while (address < end) {
    const std::uintptr_t first = address / kPageBytes * kPageBytes;
    const std::uintptr_t next = std::min(first + kPageBytes, end);
    Page& page = page_of(address);
    const bool is_whole = address == first && next == first + kPageBytes;
    if (!is_whole) page.make_cells();
    if (page.cells == nullptr) {
      note(page.works.record(work, write));
    } else {
      for (std::uintptr_t at = address; at < next; at += kWordBytes)
        note((*page.cells)[at / kWordBytes % kPageWords].works.record(work, write));
      if (is_whole && write) page = {(*page.cells)[0].works, nullptr};
    }
    address = next;
  }
  return clash;
}

void Shadow::forget(std::uintptr_t address, std::size_t bytes) {
  recent_ = {};
  const std::uintptr_t first = (address + kPageBytes - 1) / kPageBytes;
  for (std::uintptr_t number = first; number < (address + bytes) / kPageBytes; ++number)
    pages_.erase(number);
}

}  // namespace rubato::emulator
