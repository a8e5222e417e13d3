#include "tests/data/make_files.h"

#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gacc::test {

std::string idx_header(uint8_t type, const std::vector<uint32_t>& shape) {
  std::string bytes = {0, 0, static_cast<char>(type), static_cast<char>(shape.size())};
  for (uint32_t extent : shape) bytes += big(extent);
  return bytes;
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data, int version,
                bool fortran) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
                       ", 'shape': " + shape + ", }";
  size_t before = version == 1 ? 10 : 12;
  while ((before + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  bytes += version == 1 ? little(static_cast<uint16_t>(header.size()))
                        : little(static_cast<uint32_t>(header.size()));
  return bytes + header + data;
}

static std::string deflated(std::string_view bytes, int window_bits) {
  z_stream z{};
  if (deflateInit2(&z, 9, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string out(deflateBound(&z, bytes.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  if (deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

std::string gzip(std::string_view bytes) { return deflated(bytes, 15 + 16); }

std::string zip(const std::vector<ZipEntry>& entries, bool zip64) {
  std::string file, directory;
  for (const ZipEntry& entry : entries) {
    std::string data = entry.deflated ? deflated(entry.data, -15) : entry.data;
    auto crc = static_cast<uint32_t>(
        crc32_z(0, reinterpret_cast<const Bytef*>(entry.data.data()), entry.data.size()));
    uint64_t local = file.size(), packed = data.size(), unpacked = entry.data.size();
    auto narrow = [&](uint64_t size) { return little(zip64 ? 0xffffffffu : static_cast<uint32_t>(size)); };
    std::string middle = little<uint16_t>(zip64 ? 45 : 20) + little<uint16_t>(0) +
                         little<uint16_t>(entry.deflated ? 8 : 0) + little<uint32_t>(0) + little(crc) +
                         narrow(packed) + narrow(unpacked) + little(static_cast<uint16_t>(entry.name.size()));
    std::string extra;
    if (zip64) extra = little<uint16_t>(1) + little<uint16_t>(16) + little(unpacked) + little(packed);
    file += little(0x04034b50u) + middle + little(static_cast<uint16_t>(extra.size())) + entry.name + extra +
            data;
    if (zip64)
      extra = little<uint16_t>(1) + little<uint16_t>(24) + little(unpacked) + little(packed) + little(local);
    directory += little(0x02014b50u) + little<uint16_t>(45) + middle +
                 little(static_cast<uint16_t>(extra.size())) + little<uint16_t>(0) + little<uint16_t>(0) +
                 little<uint16_t>(0) + little<uint32_t>(0) + narrow(local) + entry.name + extra;
  }
  uint64_t start = file.size(), count = entries.size(), size = directory.size();
  file += directory;
  if (zip64) {
    uint64_t end64 = file.size();
    file += little(0x06064b50u) + little<uint64_t>(44) + little<uint16_t>(45) + little<uint16_t>(45) +
            little<uint32_t>(0) + little<uint32_t>(0) + little(count) + little(count) + little(size) +
            little(start);
    file += little(0x07064b50u) + little<uint32_t>(0) + little(end64) + little<uint32_t>(1);
  }
  auto count16 = zip64 ? uint16_t{0xffff} : static_cast<uint16_t>(count);
  return file + little(0x06054b50u) + little<uint16_t>(0) + little<uint16_t>(0) + little(count16) +
         little(count16) + little(zip64 ? 0xffffffffu : static_cast<uint32_t>(size)) +
         little(zip64 ? 0xffffffffu : static_cast<uint32_t>(start)) + little<uint16_t>(0);
}

Folder::Folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gacc-data-XXXXXX").string();
  if (!mkdtemp(pattern.data())) std::abort();
  path_ = pattern;
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}
std::string Folder::put(std::string_view file, std::string_view bytes) const {
  std::ofstream(path(file), std::ios::binary) << bytes;
  return path(file);
}
std::vector<std::string> Folder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

PlanInput input(const char* name, DType dtype, std::vector<int64_t> shape) {
  PlanInput made;
  made.name = name;
  made.dtype = dtype;
  made.shape = std::move(shape);
  return made;
}

Plan image_label_plan() {
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs.resize(2);
  plan.inputs[0].name = "image";
  plan.inputs[0].dtype = DType::f32;
  plan.inputs[0].shape = {2, 2};
  plan.inputs[1].name = "label";
  plan.inputs[1].dtype = DType::i32;
  plan.inputs[1].range = 3;
  return plan;
}

}  // namespace gacc::test
