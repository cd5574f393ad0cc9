// Our JSON against nlohmann's, an independent implementation, on random documents.
// RUBATO_SEED=<n> replays a run.
#include "common/json.h"
#include "common/rng.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace rubato::json {
namespace {

using Reference = nlohmann::json;

class JsonProperty : public ::testing::Test {
 protected:
  JsonProperty() { std::cout << "seed " << seed_ << " (RUBATO_SEED replays it)\n"; }

  std::size_t pick(std::size_t bound) { return rng_.below(bound); }

  std::string random_key() {
    static const char* const kKeys[] = {"a",  "b", "c", "",  "a/b", "m~n",
                                        "~0", "é", "0", "-", "k\n"};
    return kKeys[pick(std::size(kKeys))];
  }

  Reference random_scalar() {
    switch (pick(7)) {
      case 0:
        return nullptr;
      case 1:
        return rng_.chance(0.5);
      case 2:
        return static_cast<std::int64_t>(rng_.next());
      case 3:
        return static_cast<std::int64_t>(pick(10));
      case 4: {
        double d = 0;
        const std::uint64_t bits = rng_.next();
        std::memcpy(&d, &bits, sizeof d);
        return std::isfinite(d) ? Reference(d) : Reference(0.5);
      }
      case 5:
        return static_cast<double>(pick(1000)) / 8;
      default:
        return random_key() + std::string(1, static_cast<char>(pick(128)));
    }
  }

  Reference random_document(int depth) {
    const std::size_t kind = pick(depth > 0 ? 6 : 2);
    if (kind < 2) return random_scalar();
    Reference out = kind < 4 ? Reference::array() : Reference::object();
    const std::size_t size = pick(5);
    for (std::size_t i = 0; i < size; ++i) {
      if (kind < 4) {
        out.push_back(random_document(depth - 1));
      } else {
        out[random_key()] = random_document(depth - 1);
      }
    }
    return out;
  }

  // Pointers of all values in a document, and of its containers.
  void collect(const Reference& value, const std::string& pointer) {
    all_.push_back(pointer);
    if (value.is_object() || value.is_array()) containers_.push_back(pointer);
    if (value.is_object()) {
      for (const auto& [key, member] : value.items()) {
        collect(member, pointer + "/" + escape_pointer(key));
      }
    } else if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        collect(value[i], pointer + "/" + std::to_string(i));
      }
    }
  }

  // One operation; most paths exist. The reference knows no scalar or null as a parent.
  Reference random_operation(const Reference& document) {
    all_.clear();
    containers_.clear();
    collect(document, "");
    const auto place = [&](const Reference& in) {
      if (containers_.empty()) return std::string("/none/none");
      const std::string parent = containers_[pick(containers_.size())];
      const Reference& container = in.at(Reference::json_pointer(parent));
      if (container.is_object()) return parent + "/" + escape_pointer(random_key());
      const std::size_t index = pick(container.size() + 2);
      return parent + "/" + (rng_.chance(0.2) ? "-" : std::to_string(index));
    };
    const auto existing = [&] {
      if (all_.size() == 1 || rng_.chance(0.05)) return std::string("/none/none");
      return all_[1 + pick(all_.size() - 1)];
    };
    switch (pick(6)) {
      case 0:
        return {{"op", "remove"}, {"path", existing()}};
      case 1:
        return {{"op", "replace"}, {"path", existing()}, {"value", random_document(2)}};
      case 2: {
        const std::string from = existing();
        if (!document.contains(Reference::json_pointer(from))) {
          return {{"op", "move"}, {"from", from}, {"path", "/a"}};
        }
        // The place is chosen as the removal leaves the document.
        const Reference rest = document.patch({{{"op", "remove"}, {"path", from}}});
        containers_.clear();
        collect(rest, "");
        std::string to = place(rest);
        if (to.starts_with(from)) to = from;
        return {{"op", "move"}, {"from", from}, {"path", to}};
      }
      case 3:
        return {{"op", "copy"}, {"from", existing()}, {"path", place(document)}};
      case 4: {
        const std::string at = existing();
        const Reference::json_pointer pointer(at);
        const bool there = document.contains(pointer);
        const bool right = there && rng_.chance(0.8);
        return {
            {"op", "test"}, {"path", at}, {"value", right ? document.at(pointer) : Reference(7)}};
      }
      default:
        return {{"op", "add"}, {"path", place(document)}, {"value", random_document(2)}};
    }
  }

  static Value ours(const Reference& reference) {
    auto value = parse(reference.dump());
    EXPECT_TRUE(value.ok()) << reference.dump();
    return value.ok() ? *value : Value();
  }
  // Equal with number types: 1 and 1.0 print differently.
  static void expect_same(const Value& value, const Reference& reference) {
    ASSERT_EQ(Reference::parse(dump(value)).dump(), reference.dump());
  }

  const std::uint64_t seed_ = std::getenv("RUBATO_SEED")
                                  ? std::strtoull(std::getenv("RUBATO_SEED"), nullptr, 10)
                                  : random_seed();
  Rng rng_{seed_};
  std::vector<std::string> all_;
  std::vector<std::string> containers_;
};

TEST_F(JsonProperty, TextRoundTrips) {
  for (int i = 0; i < 3'000; ++i) {
    const Reference reference = random_document(5);
    const Value value = ours(reference);
    expect_same(value, reference);
    for (const int indent : {-1, 0, 2}) {
      const auto again = parse(dump(value, indent));
      ASSERT_TRUE(again.ok());
      ASSERT_TRUE(*again == value) << dump(value);
    }
  }
}

TEST_F(JsonProperty, PointersFindWhatTheReferenceFinds) {
  for (int i = 0; i < 500; ++i) {
    const Reference reference = random_document(5);
    const Value value = ours(reference);
    all_.clear();
    collect(reference, "");
    for (const std::string& pointer : all_) {
      const Value* found = resolve(value, pointer);
      ASSERT_NE(found, nullptr) << pointer;
      expect_same(*found, reference.at(Reference::json_pointer(pointer)));
      ASSERT_EQ(resolve(value, pointer + "/none"), nullptr);
    }
  }
}

TEST_F(JsonProperty, MergePatchesAgree) {
  for (int i = 0; i < 3'000; ++i) {
    Reference reference = random_document(4);
    const Reference patch = random_document(4);
    const Value before = ours(reference);
    Value value = before;
    merge_patch(value, ours(patch));
    expect_same(before, reference);  // copies do not see writes
    reference.merge_patch(patch);
    expect_same(value, reference);
  }
}

TEST_F(JsonProperty, PatchesAgree) {
  int good = 0;
  int bad = 0;
  for (int i = 0; i < 3'000; ++i) {
    const Reference before = random_document(4);
    Reference after = before;
    Reference operations = Reference::array();
    bool fails = false;
    for (std::size_t n = 1 + pick(6); n > 0 && !fails; --n) {
      const Reference operation = random_operation(after);
      operations.push_back(operation);
      try {
        after = after.patch(Reference::array({operation}));
      } catch (const Reference::exception&) {
        fails = true;
      }
    }
    Value value = ours(before);
    const Status status = json_patch(value, ours(operations));
    ASSERT_EQ(status.ok(), !fails) << before.dump() << "\n" << operations.dump();
    expect_same(value, fails ? before : after);
    if (::testing::Test::HasFailure()) {
      FAIL() << before.dump() << "\n" << operations.dump();
    }
    ++(fails ? bad : good);
  }
  EXPECT_GT(good, 500);
  EXPECT_GT(bad, 100);
}

// Broken texts never crash; we accept exactly what the reference accepts.
TEST_F(JsonProperty, MutatedTextsAreRefusedOrRead) {
  static constexpr char kBytes[] = "{}[],:\"\\u0019eE+-.tfn \n\xff\xc3\xa9\xed\xa0\x80";
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = random_document(4).dump();
    for (std::size_t n = pick(4); n > 0; --n) {
      const std::size_t at = pick(text.size() + 1);
      const char byte = kBytes[pick(sizeof kBytes)];
      switch (pick(4)) {
        case 0:
          text.insert(at, 1, byte);
          break;
        case 1:
          text.erase(at, 1 + pick(3));
          break;
        case 2:
          text.insert(at, text.substr(pick(text.size() + 1), pick(10)));
          break;
        default:
          if (at < text.size()) text[at] = byte;
      }
    }
    const auto value = parse(text);
    ASSERT_EQ(value.ok(), Reference::accept(text)) << text;
    if (!value.ok()) continue;
    ++accepted;
    const auto again = parse(dump(*value));
    ASSERT_TRUE(again.ok() && *again == *value) << text;
  }
  EXPECT_GT(accepted, 1'000);
}

}  // namespace
}  // namespace rubato::json
