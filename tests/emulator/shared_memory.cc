#include "tests/emulator/shared_memory.h"

#include "common/check.h"
#include "tests/emulator/program.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include <cxxabi.h>
#include <elf.h>

namespace rubato::emulator {

namespace {

constexpr const char* kDynamic = "rubato::worker::cuda::dynamic_shared";

// The thread-local memory of this program's own code.
struct Segment {
  std::size_t bytes = 0;
  std::vector<SharedArray> arrays;  // by where they begin, counted from the segment
  std::size_t dynamic = 0;          // which of them a launch asks for
};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

template <class T>
const T* at(const std::vector<char>& file, std::size_t offset) {
  CHECK_LE(offset + sizeof(T), file.size());
  return reinterpret_cast<const T*>(file.data() + offset);
}

std::vector<SharedArray> read_arrays() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::vector<char> file(std::istreambuf_iterator<char>(in), {});
  const auto* header = at<Elf64_Ehdr>(file, 0);
  const auto section = [&](std::size_t i) {
    return at<Elf64_Shdr>(file, header->e_shoff + i * sizeof(Elf64_Shdr));
  };
  std::vector<SharedArray> arrays;
  for (std::size_t i = 0; i < header->e_shnum; ++i) {
    if (section(i)->sh_type != SHT_SYMTAB) continue;
    const std::size_t names = section(section(i)->sh_link)->sh_offset;
    for (std::size_t s = 0; s < section(i)->sh_size; s += sizeof(Elf64_Sym)) {
      const auto* symbol = at<Elf64_Sym>(file, section(i)->sh_offset + s);
      if (ELF64_ST_TYPE(symbol->st_info) == STT_TLS && symbol->st_shndx != SHN_UNDEF)
        arrays.push_back({symbol->st_value, symbol->st_size,
                          demangled(at<char>(file, names + symbol->st_name))});
    }
  }
  std::ranges::sort(arrays, {}, &SharedArray::begin);
  return arrays;
}

const Segment& segment() {
  static const Segment& made = []() -> const Segment& {
    auto& segment = *new Segment;
    segment.arrays = read_arrays();
    CHECK(!segment.arrays.empty());  // was the program stripped?
    segment.bytes = segment.arrays.back().begin + segment.arrays.back().bytes;
    const auto dynamic = std::ranges::find(segment.arrays, kDynamic, &SharedArray::name);
    CHECK(dynamic != segment.arrays.end());
    segment.dynamic = static_cast<std::size_t>(dynamic - segment.arrays.begin());
    return segment;
  }();
  return made;
}

}  // namespace

std::uintptr_t shared_begin() {
  return reinterpret_cast<std::uintptr_t>(program_info().dlpi_tls_data);
}

std::size_t shared_bytes() { return segment().bytes; }

const SharedArray* shared_array_of(std::size_t offset, std::size_t dynamic_bytes) {
  static thread_local SharedArray dynamic;
  const auto& arrays = segment().arrays;
  auto next = std::ranges::upper_bound(arrays, offset, {}, &SharedArray::begin);
  if (next == arrays.begin()) return nullptr;
  const SharedArray* array = &*--next;
  if (next == arrays.begin() + static_cast<std::ptrdiff_t>(segment().dynamic)) {
    dynamic = {array->begin, dynamic_bytes, {}};
    array = &dynamic;
  }
  return offset - array->begin < array->bytes ? array : nullptr;
}

}  // namespace rubato::emulator
