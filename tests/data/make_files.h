// Builds data files in memory, byte by byte and independently of the readers under test.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"

namespace gacc {

// Training data of which nothing is known yet.
inline Status load_dataset(std::string_view spec, const Plan& plan, Dataset& dataset) {
  DataFacts facts;
  return load_dataset(spec, plan, DataUse::training, facts, dataset);
}

}  // namespace gacc

namespace gacc::test {

template <class T>
std::string little(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
std::string big(T value) {
  std::string bytes = little(value);
  return std::string(bytes.rbegin(), bytes.rend());
}
template <class T>
std::string raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}
template <class T>
std::vector<T> values(const std::vector<std::byte>& bytes) {
  std::vector<T> result(bytes.size() / sizeof(T));
  if (!result.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

std::string idx_header(uint8_t type, const std::vector<uint32_t>& shape);
// numpy's header of version 1, 2 or 3, then `data`.
std::string npy(const std::string& descr, const std::string& shape, const std::string& data, int version = 1,
                bool fortran = false);
std::string gzip(std::string_view bytes);
struct ZipEntry {
  std::string name, data;
  bool deflated = false;
};
// `zip64`: with 64-bit sizes and end record, as numpy writes large files.
std::string zip(const std::vector<ZipEntry>& entries, bool zip64 = false);

// A folder that goes with the test.
class Folder {
 public:
  Folder();
  ~Folder();
  std::string path(std::string_view file) const { return path_ + "/" + std::string(file); }
  std::string put(std::string_view file, std::string_view bytes) const;  // its path
  std::vector<std::string> files() const;                                // sorted

 private:
  std::string path_;
};
std::string contents(const std::string& path);

PlanInput input(const char* name, DType dtype, std::vector<int64_t> shape);
// image: f32 [2, 2]; label: i32 [] of range 3.
Plan image_label_plan();

}  // namespace gacc::test
