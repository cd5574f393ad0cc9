#include "worker/script/shell_text.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

using Commands = std::vector<std::vector<std::string>>;

TEST(ShellText, CommandsAreDividedAsAShellDoes) {
  const std::vector<std::pair<std::string, Commands>> cases = {
      {"", {}},
      {"a b;c&&d | e\nf", {{"a", "b"}, {"c"}, {"d"}, {"e"}, {"f"}}},
      {"a 'b; c'\"d e\" '' \\; f\\\ng", {{"a", "b; cd e", "", ";", "fg"}}},
      {"a # b; c\nd#e", {{"a"}, {"d#e"}}},
      {"if a; then ! b; else { c; }; fi", {{"a"}, {"b"}, {"c"}, {"}"}, {"fi"}}},
      {"(a; b) && c", {{"a"}, {"b"}, {"c"}}},
      {"f() { a x; }", {{"f"}, {"a", "x"}, {"}"}}},
      {"a x$(b y) z", {{"b", "y"}, {"a", "x$", "z"}}},
      {"a `b y` z", {{"b", "y"}, {"a", "`", "z"}}},
      {"a=\"$(b \"c d\" 'e; f')\"; g", {{"b", "c d", "e; f"}, {"a=$"}, {"g"}}},
      {"a \"$(b \"$(c \"d; e\")\")\" f", {{"c", "d; e"}, {"b", "$"}, {"a", "$", "f"}}},
      {"a \"$(b)\"x \"${c}\" \"$d\" \"\\$(e)\"", {{"b"}, {"a", "$x", "${c}", "$d", "$(e)"}}},
      {"a ${b:-c d; e} f${#g}", {{"a", "${b:-c d; e}", "f${#g}"}}},
      {"a ${b:-${c:-d e} f}; g", {{"a", "${b:-${c:-d e} f}"}, {"g"}}},
      {"a $(( $b + 1 )) $c$", {{"$b", "+", "1"}, {"a", "$", "$c$"}}},
      {"a \"$([[ b =~ (c) ]] && d \"e; f\")\"; g",
       {{"[[", "b", "=~", "c", "]]"}, {"d", "e; f"}, {"a", "$"}, {"g"}}},
      {"a; b ${c:-\"d; e\"}; f", {{"a"}, {"b", "${c:-}"}}},
      {"a; b \"c `d \\\"e; f\\\"`\"; g", {{"a"}, {"b", "c "}}},
      {"a; b $'c\\'; d'; e", {{"a"}, {"b", "$"}}},
      {"a $(case b in c) d;; esac); e", {{"case"}, {"a", "$"}}},
      {"case a in b) c;; d) e;; esac", {{"c"}, {"e"}, {"esac"}}},
      {"a 2>&1 <<<b; c", {{"a", "2>&1", "b"}, {"c"}}},
      {"[[ a && b || (c) ]]; d", {{"[[", "a", "b", "c", "]]"}, {"d"}}},
      {"a; b <<END\nc\nEND", {{"a"}, {"b"}}},
      {"a; b=(c d)", {{"a"}, {"b="}}},
      {"a 'b", {{"a", "b"}}},
      {"a \\", {{"a"}}}};
  for (const auto& [text, commands] : cases) EXPECT_EQ(simple_commands(text), commands) << text;
}

TEST(ShellText, BracketsWithoutEndAreNotFollowedForEver) {
  EXPECT_TRUE(simple_commands(std::string(1'000'000, '(')).empty());
  for (const std::string part : {"\"$(", "${", "$(", "\"${"}) {
    std::string text = "a; b ";
    for (int i = 0; i < 300'000; ++i) text += part;
    EXPECT_EQ(simple_commands(text).front(), std::vector<std::string>{"a"}) << part;
  }
  EXPECT_EQ(simple_commands("a; " + std::string(1'000'000, '(')).size(), 1u);
}

}  // namespace
}  // namespace rubato::worker
