// tokenizer.json: what is read and refused, and that a text may be encoded in parts. That tokens
// are those of the tokenizers package: tests/unit/worker/oracle/tokenizers_oracle.py.
#include "common/json.h"
#include "common/rng.h"
#include "worker/data/json_tokenizer.h"
#include "worker/data/unicode_classes.h"
#include "worker/data/utf8.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

// Letters, a space and a newline, "ab" and " ab" joined; of bytes.
json::Value small() {
  return json::parse(R"({"added_tokens": [{"id": 9, "content": "<end>", "special": true}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "Ċ": 3, "ab": 4, "Ġab": 5},
                "merges": ["a b", ["Ġ", "ab"]]}})")
      .value();
}

// Every byte is a token, and some pairs with spaces in them are joined, so that tokens show where
// the pieces of GPT-2's or Llama 3's expression end.
json::Value of_all_bytes(bool is_llama) {
  json::Value file = small();
  json::Value vocabulary = json::Value::object({});
  std::int64_t token = 100;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    std::string key;
    append_utf8(is_itself ? static_cast<char32_t>(byte) : next++, key);
    vocabulary.set(key, token++);
  }
  json::Value merges = json::Value::array({});
  for (const auto& [left, right] : {std::pair("Ġ", "Ġ"),
                                    {"Ċ", "Ċ"},
                                    {"č", "Ċ"},
                                    {".", "Ċ"},
                                    {"Ġ", "a"},
                                    {"Ċ", "Ġ"},
                                    {"Ġ", "Ċ"},
                                    {"ĉ", "a"},
                                    {".", "."}}) {
    vocabulary.set(std::string(left) + right, token++);
    merges.push_back(std::string(left) + " " + right);
  }
  file.at("model").set("vocab", std::move(vocabulary)).set("merges", std::move(merges));
  if (is_llama)
    file.set(
        "pre_tokenizer",
        json::parse(std::string(R"({"type": "Sequence", "pretokenizers": [
                   {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")") +
                    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|)" +
                    R"(\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|)" +
                    R"(\\s+(?!\\S)|\\s+"}},)" +
                    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})")
            .value());
  return file;
}

json::Value isolating_digits(json::Value file) {
  const auto digits = json::Value::object({{"type", "Digits"}, {"individual_digits", true}});
  const json::Value rest = file["pre_tokenizer"];
  file.set("pre_tokenizer",
           json::Value::object(
               {{"type", "Sequence"}, {"pretokenizers", json::Value::array({digits, rest})}}));
  return file;
}

using Tokens = std::vector<std::int32_t>;

TEST(JsonTokenizer, EncodesAndDecodes) {
  const auto tokenizer = JsonTokenizer::parse(json::dump(small()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().to_string();
  EXPECT_EQ(tokenizer->vocabulary(), 10);
  EXPECT_EQ(tokenizer->find("<end>"), 9);
  EXPECT_EQ(tokenizer->encode("ab ab\nba<end>b"), (Tokens{4, 5, 3, 1, 0, 9, 1}));
  EXPECT_EQ(tokenizer->encode("a?b"), (Tokens{0, 1}));  // no token, and none for the unknown
  EXPECT_EQ(tokenizer->decode(Tokens{4, 5, 3, 9, 77}), "ab ab\n<end>");
}

// What lies before a digit is cut as if the text ended there: its last space stays where it is.
TEST(JsonTokenizer, DigitsMayBePiecesOfTheirOwn) {
  const json::Value file = of_all_bytes(false);
  const auto plain = JsonTokenizer::parse(json::dump(file)).value();
  const auto digits = JsonTokenizer::parse(json::dump(isolating_digits(file))).value();
  EXPECT_EQ(plain.encode("a  1  a"), (Tokens{197, 132, 132, 149, 132, 360}));
  EXPECT_EQ(digits.encode("a  1  a"), (Tokens{197, 356, 149, 132, 360}));
  EXPECT_EQ(digits.decode(digits.encode("12 ½ x7")), "12 ½ x7");
}

// Another type read as absent would give other tokens, and nobody would be told.
TEST(JsonTokenizer, MembersOfAnotherTypeAreRefused) {
  using json::Value;
  const auto why = [](std::initializer_list<const char*> path, Value value) {
    Value file = small();
    Value* at = &file;
    for (const char* member : path) at = &at->at(member);
    *at = std::move(value);
    const auto read = JsonTokenizer::parse(json::dump(file));
    return read.ok() ? "accepted" : read.error().what();
  };
  const std::string of = "tokenizer.json: ", end = " is not supported";
  EXPECT_EQ(why({"model"}, nullptr), of + "model.vocab is missing");
  EXPECT_EQ(why({"model", "vocab"}, Value::array({"a"})), of + "model.vocab [\"a\"]" + end);
  EXPECT_EQ(why({"model", "merges"}, nullptr), of + "model.merges is missing");
  EXPECT_EQ(why({"model", "merges"}, "a b"), of + "model.merges \"a b\"" + end);
  EXPECT_EQ(why({"model", "type"}, 5), of + "model.type 5" + end);
  EXPECT_EQ(why({"model", "dropout"}, "0.5"), of + "model.dropout \"0.5\"" + end);
  EXPECT_EQ(why({"model", "dropout"}, 0.0), "accepted");
  EXPECT_EQ(why({"model", "unk_token"}, 5), of + "model.unk_token 5" + end);
  for (const std::string member : {"byte_fallback", "ignore_merges", "fuse_unk"}) {
    EXPECT_EQ(why({"model", member.c_str()}, 1), of + "model." + member + " 1" + end);
    EXPECT_EQ(why({"model", member.c_str()}, nullptr), "accepted");
  }
  EXPECT_EQ(why({"model", "vocab", "b"}, 0),
            of + "model.vocab 'b' has the id 0, which is another token's");
  EXPECT_EQ(why({"added_tokens"}, Value::object()), of + "added_tokens {}" + end);
  EXPECT_EQ(why({"normalizer"}, Value::object({{"type", "Sequence"}, {"normalizers", 1}})),
            of + "normalizers 1" + end);
  EXPECT_EQ(why({"pre_tokenizer", "use_regex"}, "false"),
            of + "pre_tokenizer.use_regex \"false\"" + end);
  const auto metaspace = [&](const char* member, Value value) {
    return why({"pre_tokenizer"}, Value::object({{"type", "Metaspace"}, {"replacement", "\u2581"}})
                                      .set(member, std::move(value)));
  };
  EXPECT_EQ(metaspace("split", 1), of + "pre_tokenizer.split 1" + end);
  EXPECT_NE(metaspace("prepend_scheme", 5), "accepted");
  EXPECT_NE(metaspace("add_prefix_space", false), "accepted");  // and its prefix would be "always"
  EXPECT_EQ(JsonTokenizer::parse(R"({"model": {}, "model": {}})").error().what(),
            "JSON: the document has \"model\" twice; write each field once");
}

TEST(JsonTokenizer, WhatItDoesNotDoIsRefusedByName) {
  const auto why = [](auto change) {
    json::Value file = small();
    change(file);
    const auto read = JsonTokenizer::parse(json::dump(file));
    return read.ok() ? "accepted" : read.error().what();
  };
  using json::Value;
  EXPECT_EQ(why([](Value& v) { v.set("normalizer", Value::object({{"type", "NFC"}})); }),
            "tokenizer.json: normalizer {\"type\":\"NFC\"} is not supported");
  for (const char* member : {"padding", "truncation"})  // of batches, not of a text
    EXPECT_EQ(why([&](Value& v) { v.set(member, Value::object({{"max_length", 3}})); }),
              "accepted");
  EXPECT_EQ(why([](Value& v) {
              v = isolating_digits(v);
              v.at("pre_tokenizer").at("pretokenizers").at(0).set("individual_digits", false);
            }),
            "tokenizer.json: pre_tokenizer {\"type\":\"Digits\",\"individual_digits\":false} is "
            "not supported");
  EXPECT_EQ(why([](Value& v) { v.at("pre_tokenizer").set("add_prefix_space", true); }),
            "tokenizer.json: pre_tokenizer.add_prefix_space true is not supported");
  EXPECT_EQ(
      why([](Value& v) {
        v.set("pre_tokenizer",
              Value::object({{"type", "Split"}, {"pattern", Value::object({{"Regex", "\\w+"}})}}));
      }).substr(0, 40),
      "tokenizer.json: pre_tokenizer {\"type\":\"S");
  EXPECT_EQ(why([](Value& v) { v.at("model").set("type", "Unigram"); }),
            "tokenizer.json: model.type \"Unigram\" is not supported");
  EXPECT_EQ(why([](Value& v) { v.at("model").set("dropout", 0.1); }),
            "tokenizer.json: model.dropout 0.1 is not supported");
  EXPECT_EQ(why([](Value& v) { v.at("model").set("byte_fallback", true); }),
            "tokenizer.json: model.byte_fallback: model.vocab has no <0x00>");
  EXPECT_EQ(why([](Value& v) { v.at("model").set("merges", Value::array({"a x"})); }),
            "tokenizer.json: model.merges: entry 0 joins what is not in model.vocab, or into what "
            "is not");
  EXPECT_EQ(why([](Value& v) { v.at("added_tokens").at(0).set("lstrip", true); }),
            "tokenizer.json: added_tokens '<end>'.lstrip true is not supported");
  EXPECT_EQ(why([](Value& v) { v.at("added_tokens").at(0).set("id", 5); }),
            "tokenizer.json: added_tokens '<end>' has the id 5, which is another token's");
  EXPECT_EQ(
      why([](Value& v) { v.at("added_tokens").at(0).set("id", 5).set("content", "\x1b[2J"); }),
      "tokenizer.json: added_tokens ' [2J' has the id 5, which is another token's");
  EXPECT_EQ(why([](Value& v) { v.at("added_tokens").at(0).set("content", "ab"); }),
            "tokenizer.json: added_tokens 'ab' has the id 9, before it had 4");
  EXPECT_EQ(why([](Value& v) { v.at("added_tokens").at(0).set("content", "ab").set("id", 4); }),
            "accepted");
}

TEST(JsonTokenizer, PartsGiveTheTokensOfTheWhole) {
  json::Value file = small();
  for (const bool is_llama : {false, true}) {
    if (is_llama)
      file.set(
          "pre_tokenizer",
          json::parse(std::string(R"({"type": "Sequence", "pretokenizers": [
                   {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")") +
                      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)" +
                      R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)" +
                      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})")
              .value());
    const auto tokenizer = JsonTokenizer::parse(json::dump(file)).value();
    Rng rng(5);
    int cuts = 0;
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (int i = 0; i < 40; ++i) text += "ab \n\n a"[rng.below(7)];
      const Tokens whole = tokenizer.encode(text);
      const std::size_t at = tokenizer.whole_part(std::string_view(text).substr(0, 30));
      cuts += at > 0 ? 1 : 0;
      Tokens parts = tokenizer.encode(text.substr(0, at));
      const Tokens rest = tokenizer.encode(text.substr(at));
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << text << " at " << at;
    }
    EXPECT_GT(cuts, 150);
  }
}

Tokens in_two(const JsonTokenizer& tokenizer, const std::string& text, std::size_t at) {
  Tokens parts = tokenizer.encode(text.substr(0, at));
  const Tokens rest = tokenizer.encode(text.substr(at));
  parts.insert(parts.end(), rest.begin(), rest.end());
  return parts;
}

TEST(JsonTokenizer, TextsOfManyKindsHaveParts) {
  const std::string texts[] = {
      "{\"text\":\"a b\"}\n{\"text\":\"c d\"}\n",            // JSONL
      "{\"a\":\"太初有道。\"}\n{\"a\":\"道与神同在。\"}\n",  // and without a space
      "one.\r\ntwo.\r\n\r\nthree.\r\n",
      "В начале было Слово,\nи Слово было у Бога.\n",
      "太初有道，道与神同在。\n这道太初与神同在。\n",
      "if (a) {\n    b();\n\tc();\n}\n",
      "1,2,3\n4,5,6\n",
  };
  for (const bool is_llama : {false, true}) {
    const auto tokenizer = JsonTokenizer::parse(json::dump(of_all_bytes(is_llama))).value();
    for (const std::string& text : texts) {
      const Tokens whole = tokenizer.encode(text);
      for (std::size_t seen = text.find('\n') + 5; seen <= text.size(); ++seen) {
        const std::size_t at = tokenizer.whole_part(std::string_view(text).substr(0, seen));
        EXPECT_GT(at, 0u) << text;
        ASSERT_EQ(in_two(tokenizer, text, at), whole) << text << " at " << at;
      }
    }
  }
}

// At every place that it may choose, and with broken UTF-8.
TEST(JsonTokenizer, AnyPartGivesTheTokensOfTheWhole) {
  const std::string points[] = {"a",  "b",    "7",        ".",      "'",      "s",      " ",  " ",
                                "\n", "\r",   "\t",       "\u3000", "\u00a0", "\u2028", "中", "é",
                                "。", "\xFF", "\xE2\x82", "\xC3",   "ſ",      "<end>",  "ll", "½"};
  for (const int kind : {0, 1, 2, 3}) {
    json::Value file = of_all_bytes(kind % 2 == 1);
    if (kind >= 2) file = isolating_digits(file);
    const auto tokenizer = JsonTokenizer::parse(json::dump(file)).value();
    Rng rng(7);
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (int i = 0; i < 16; ++i) text += points[rng.below(std::size(points))];
      const Tokens whole = tokenizer.encode(text);
      for (std::size_t seen = 1; seen <= text.size(); ++seen) {
        const std::size_t at = tokenizer.whole_part(std::string_view(text).substr(0, seen));
        ASSERT_EQ(in_two(tokenizer, text, at), whole) << text << " at " << at << ", " << kind;
      }
    }
  }
}

TEST(JsonTokenizer, ATextThatGrowsIsSearchedOnce) {
  const auto tokenizer = JsonTokenizer::parse(json::dump(of_all_bytes(false))).value();
  const std::string text = "太初有道\u3000神";
  for (std::size_t seen = 0; seen <= text.size(); ++seen) {
    if (tokenizer.whole_part(text.substr(0, seen)) != 0) break;  // the place is found as early
    for (std::size_t more = seen; more <= text.size(); ++more)
      EXPECT_EQ(tokenizer.whole_part(text.substr(0, more), seen),
                tokenizer.whole_part(text.substr(0, more)));
  }
  EXPECT_EQ(tokenizer.whole_part(text), std::string("太初有道").size());
  EXPECT_EQ(tokenizer.whole_part("a b" + text, text.size() + 3), 0u);
}

TEST(JsonTokenizer, AnAddedTokenWithASpaceMakesAllTextsWhole) {
  for (const char* content : {"a b", "\n", "x\u3000"}) {
    json::Value file = small();
    file.at("added_tokens").at(0).set("content", content);
    EXPECT_EQ(JsonTokenizer::parse(json::dump(file))->whole_part("a a\na a"), 0u) << content;
  }
}

TEST(JsonTokenizer, FindsTheTokenThatEndsAText) {
  json::Value file = small();
  const auto end = [&](const std::string& name) {
    return JsonTokenizer::parse(json::dump(file))->end_of_text(name);
  };
  EXPECT_EQ(end("").error().what(), "no token that ends a text is known; name it: --end");
  EXPECT_EQ(end("<end>").value(), 9);
  EXPECT_EQ(end("<stop>").error().what(), "no token is called <stop>");
  file.at("added_tokens").at(0).set("content", "</s>");
  EXPECT_EQ(end("").value(), 9);
}

TEST(Utf8, BrokenSequencesBecomeOneMarkEach) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(valid_utf8("a\xC3\xA9\xF0\x9F\x98\x80"), "a\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(valid_utf8("\xFFx"), mark + "x");
  EXPECT_EQ(valid_utf8("\xE2\x82x"), mark + "x");             // the start of a euro sign
  EXPECT_EQ(valid_utf8("\xC0\xAF"), mark + mark);             // overlong
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), mark + mark + mark);  // a surrogate
  for (const char32_t point : {0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(point, text);
    EXPECT_EQ(code_point_at(text, 0).value, point);
    EXPECT_EQ(code_point_at(text, 0).bytes, text.size());
  }
  EXPECT_TRUE(is_letter(U'é') && is_number(U'½') && is_space(U'\u3000') && !is_letter(U'1'));
}

}  // namespace
}  // namespace rubato::worker
