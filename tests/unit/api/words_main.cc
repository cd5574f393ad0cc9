// api-words: what the in-memory API server answers, for comparison with a real one. The first line
// of input is a manifest to create; each further one is {"create": manifest}, tried as a dry run,
// or {"update": merge patch on the first}. For each, one line: the sorted causes as a JSON list.
#include "tests/unit/api/memory_plane.h"

#include <algorithm>
#include <iostream>

int main() {
  rubato::api::MemoryPlane plane;
  rubato::json::Value first;
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto request = rubato::json::parse(line);
    if (!request.ok()) {
      std::cerr << request.error().to_string() << "\n";
      return 2;
    }
    if (first.is_null()) {
      first = *request;
      if (plane.create(first, false).ok()) continue;
      std::cerr << "the first manifest is refused\n";
      return 2;
    }
    const auto answer = request->has("create") ? plane.create((*request)["create"], true)
                                               : plane.patch(first, (*request)["update"], "", true);
    std::vector<std::string> causes = rubato::api::causes_of(answer);
    std::sort(causes.begin(), causes.end());
    rubato::json::Value list = rubato::json::Value::array();
    for (const std::string& cause : causes) list.push_back(cause);
    std::cout << rubato::json::dump(list) << "\n";
  }
  return 0;
}
