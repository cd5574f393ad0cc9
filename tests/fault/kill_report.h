// What the kill matrix found: a file of lines that a later run adds to, and the table of
// docs/reliability.md made from it.
#pragma once

#include "common/result.h"
#include "tests/fault/kill_case.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::fault {

// By name of the case: what was wrong, or empty. One line each: name, tab, text.
using Findings = std::map<std::string, std::string>;

Findings read_findings(const std::string& file);
void add_finding(const std::string& file, const std::string& name, const std::string& fault);

// Markdown: a row for each scene, role and phase, a column for each fault, in it the world sizes.
std::string table_of(const std::vector<KillCase>& cases, const Findings& findings);

// Puts `table` between the two marks of the page. kNotFound: the page or its marks are missing.
Status write_page(const std::string& page, const std::string& table);

}  // namespace rubato::fault
