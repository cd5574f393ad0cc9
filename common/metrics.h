// Metrics with Prometheus names and types. Handles are cheap to keep and to bump from any thread.
// Labels form bounded families only: never label by job name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rubato {

using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void add(double amount = 1) = 0;
  virtual double value() const = 0;
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void set(double value) = 0;
  virtual void add(double amount) = 0;
  virtual double value() const = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void observe(double value) = 0;  // base units: seconds, bytes
};

// A registry; wraps prometheus-cpp. The same (name, labels) gives the same handle; handles live as
// long as the registry. Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels,
                       const std::vector<double>& buckets);
  // Text exposition format 0.0.4.
  std::string expose() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato
