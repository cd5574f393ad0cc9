// Tables as kubectl prints them: columns padded with three blanks, each row on one line
// whatever its cells are (readable()). Pure functions.
#pragma once

#include "common/json.h"

#include <string>
#include <vector>

namespace rubato::ctl {

struct TextTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

using Widths = std::vector<std::size_t>;
// Characters (UTF-8 code points) of the widest cell of each column.
Widths widths_of(const TextTable& table);
// One line without the newline; cells wider than their column push the rest to the right.
std::string row_text(const std::vector<std::string>& cells, const Widths& widths);
std::string render(const TextTable& table, bool with_head = true);

// A meta.k8s.io/v1 Table; `wide` also takes the columns of lower priority. Column names in
// capitals. `with_namespace` puts the object's namespace in front.
TextTable from_server(const json::Value& table, bool wide, bool with_namespace = false);

}  // namespace rubato::ctl
