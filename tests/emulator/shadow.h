// Who touched which word last, and whether what touches it now comes in an order. Two questions for
// each word:
//
//   within a kernel: two threads of a block are ordered by a barrier between them, two lanes of a
//   warp
//     also by __syncwarp; two blocks never are. A shuffle orders nothing.
//   between pieces of work (kernels, copies): streams.h says which come before which.
//
// Exact for any number of readers within a kernel; of pieces of work that read a word in no order,
// two are remembered. A word is four bytes: threads that write different halves of one are taken to
// race.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace rubato::emulator {

constexpr std::size_t kWordBytes = 4;

// One access by a thread. Phases count up over the whole run: a new one at each block and at each
// barrier. So of two accesses in one phase none is first, unless the same warp met between them.
struct Stamp {
  std::uint32_t phase = 0;  // 0: none
  std::uint32_t code = 0;   // where in the program, from its first byte on
  std::uint16_t thread = 0;
  std::uint16_t turn = 0;  // how often its warp has met
};

// The thread that runs.
struct Moment {
  std::uint32_t work = 0;
  std::uint32_t kernel_phase = 0;  // the first of this kernel
  std::uint32_t block_phase = 0;   // the first of this block
  Stamp stamp;                     // but for `code`
};

// What clashes with an access, and how.
struct Clash {
  enum Kind : std::uint8_t { kNone, kThread, kWork, kNothingThere } kind = kNone;
  Stamp other;
  std::uint32_t work = 0;
};

// Pieces of work that touched something, without the threads in them.
class Works {
 public:
  // The piece of work that this one must come after, and does not; 0: all is in order.
  std::uint32_t record(std::uint32_t work, bool write);

 private:
  std::uint32_t write_ = 0;
  std::array<std::uint32_t, 2> reads_ = {};
};

// Threads that touched a word.
class Threads {
 public:
  Clash record(const Moment& now, bool write);
  // Whether a thread of this block has written it.
  bool is_written(const Moment& now) const { return write_.phase >= now.block_phase; }

 private:
  void add_read(const Moment& now);
  Stamp write_;
  std::array<Stamp, 2> reads_;  // of the latest phase
  Stamp foreign_read_;          // of another block of this kernel
};

// All words that were touched, of device and host, in pages that are made when they are needed.
// Memory: 60 bytes a word that kernels touch, next to nothing for what only copies do.
class Shadow {
 public:
  Clash touch(std::uintptr_t address, bool write, const Moment& now);
  // A piece of work touches all bytes of a range; the work that it clashes with, or 0.
  std::uint32_t sweep(std::uintptr_t address, std::size_t bytes, bool write, std::uint32_t work);
  // Gives back the memory of a range that is never touched again.
  void forget(std::uintptr_t address, std::size_t bytes);

 private:
  static constexpr std::size_t kPageWords = 256;
  static constexpr std::size_t kPageBytes = kPageWords * kWordBytes;
  struct Cell {
    Works works;
    Threads threads;
  };
  struct Page {
    Works works;  // of all its words, while there are no cells
    std::unique_ptr<std::array<Cell, kPageWords>> cells;
    void make_cells();
  };
  Page& page_of(std::uintptr_t address);

  std::unordered_map<std::uintptr_t, Page> pages_;
  struct Recent {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Recent, 64> recent_;
};
// The one of this program.
Shadow& shadow();

}  // namespace rubato::emulator
