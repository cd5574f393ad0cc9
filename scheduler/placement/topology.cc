// Where a job says how near to each other its pods are to be: place.h.
#include "scheduler/placement/place.h"

#include <algorithm>
#include <tuple>

namespace rubato::sched {

bool Placer::place_near(const std::vector<TypeIndex>& types, Gang& gang) {
  std::vector<Ranked> all = fitting_of(types, gang);
  const std::size_t asked = problem_.level_named(gang.job.topology->level);
  for (std::size_t level = asked + 1; level-- > 0;) {
    if (place_in_one_domain(level, all, gang)) return true;
    if (gang.job.needs_domain()) return false;
  }
  sort_by_domains(0, all, gang);
  return put_all(gang, std::move(all));
}

bool Placer::place_in_one_domain(std::size_t level, const std::vector<Ranked>& all, Gang& gang) {
  const Domains domains = domains_of(level, all, gang);
  using Rank = std::tuple<bool, std::int64_t>;
  const auto rank = [](const Domain& domain) { return Rank(!domain.has_whole, domain.fits); };
  const Domain* best = nullptr;
  for (const auto& [index, domain] : domains)
    if (domain.fits >= gang.pods && (best == nullptr || rank(domain) < rank(*best))) best = &domain;
  if (best == nullptr) return false;
  std::vector<Ranked> nodes = best->nodes;
  sort_by_domains(level + 1, nodes, gang);
  return put_all(gang, std::move(nodes));
}

// Of those that it may have: the one where it has pods already, if there are any.
Placer::Domains Placer::domains_of(std::size_t level, const std::vector<Ranked>& all,
                                   const Gang& gang) const {
  const auto used = domain_used(level, gang);
  Domains domains;
  for (const Ranked& node : all) {
    const auto index = problem_.domain_of(level, node.node);
    if (index && (!used || *index == *used)) domains[*index].nodes.push_back(node);
  }
  for (auto& [index, domain] : domains) {
    std::vector<Ranked> nodes = domain.nodes;
    cap_by_quota(nodes, gang);
    for (const Ranked& node : nodes) {
      domain.fits = gang.job.one_node ? std::max(domain.fits, node.fits) : domain.fits + node.fits;
      domain.has_whole = domain.has_whole || node.fits >= gang.pods;
    }
  }
  return domains;
}

// Where its pods are, or must be; none: it has none there.
std::optional<DomainIndex> Placer::domain_used(std::size_t level, const Gang& gang) const {
  if (gang.bound.domain) return gang.bound.domain;
  if (gang.bound.used.empty()) return std::nullopt;
  return problem_.domain_of(level, gang.bound.used.front());
}

// By the domains of level `from`, then by those of each narrower one to the level that was asked
// for: the one where it has pods comes first, then those with most room, so that few are enough.
void Placer::sort_by_domains(std::size_t from, std::vector<Ranked>& nodes, const Gang& gang) const {
  const std::size_t asked = problem_.level_named(gang.job.topology->level);
  for (std::size_t level = asked + 1; level-- > from;) {
    std::map<std::optional<DomainIndex>, std::int64_t> room;
    for (const Ranked& node : nodes) room[problem_.domain_of(level, node.node)] += node.fits;
    const auto used = domain_used(level, gang);
    std::ranges::stable_sort(nodes, {}, [&](const Ranked& node) {
      const auto domain = problem_.domain_of(level, node.node);
      return std::tuple(!used || domain != used, !domain, -room[domain], domain);
    });
  }
}

std::int64_t Placer::fit_in_one_domain(const std::vector<TypeIndex>& types,
                                       const Gang& gang) const {
  std::int64_t most = 0;
  const std::size_t level = problem_.level_named(gang.job.topology->level);
  for (const auto& [index, domain] : domains_of(level, fitting_of(types, gang), gang))
    most = std::max(most, domain.fits);
  return most;
}

}  // namespace rubato::sched
