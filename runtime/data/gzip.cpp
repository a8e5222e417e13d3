#include "runtime/data/gzip.h"

#include <zlib.h>

#include <algorithm>

#include "runtime/byte_order.h"

namespace gacc {
namespace {

// Deflate cannot compress better than 1032:1, so a larger claim is a lie.
constexpr int64_t kBestRatio = 1032;

struct Inflater {
  explicit Inflater(int window_bits) : ready(inflateInit2(&stream, window_bits) == Z_OK) {}
  ~Inflater() {
    if (ready) inflateEnd(&stream);
  }
  // Goes on, in chunks that fit zlib's 32-bit counters.
  int step(std::string_view bytes, std::string& out) {
    if (!ready) return Z_MEM_ERROR;
    const auto chunk = [](size_t all) { return static_cast<uInt>(std::min<size_t>(all, size_t{1} << 30)); };
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + in));
    stream.avail_in = chunk(bytes.size() - in);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = chunk(out.size() - made);
    const uInt given = stream.avail_in, room = stream.avail_out;
    const int result = inflate(&stream, Z_NO_FLUSH);
    in += given - stream.avail_in;
    made += room - stream.avail_out;
    return result;
  }

  z_stream stream{};
  const bool ready;
  size_t in = 0, made = 0;  // bytes taken, and given
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.substr(0, 2) == "\x1f\x8b"; }

Result<std::string> gunzip(std::string_view bytes, std::string_view name, int64_t limit) {
  Inflater inflater(15 + 16);  // 16: gzip's header and checksum
  auto& [z, ready, in, made] = inflater;
  // The trailer tells the size (modulo 4 GiB): a first guess, since it need not be true.
  const int64_t told = bytes.size() < 18 ? 0 : read_little<uint32_t>(bytes.data() + bytes.size() - 4);
  const int64_t guess = std::min({told, static_cast<int64_t>(bytes.size()) * kBestRatio, limit});
  std::string out(static_cast<size_t>(guess) + 1, '\0');
  while (true) {
    if (made == out.size()) {
      if (static_cast<int64_t>(made) > limit) break;
      out.resize(std::min(out.size() * 2, static_cast<size_t>(limit) + 1));
    }
    const int result = inflater.step(bytes, out);
    if (result == Z_STREAM_END) {
      while (in < bytes.size() && bytes[in] == '\0') ++in;  // padding between members
      if (in == bytes.size()) break;
      if (!is_gzip(bytes.substr(in)))
        return Status::error("{}: there {} {} after the end of the gzip data", name,
                             bytes.size() - in == 1 ? "is" : "are", counted(bytes.size() - in, "byte"));
      inflateReset(&z);
      continue;
    }
    if (result == Z_MEM_ERROR) return Status::error("{}: out of memory", name);
    if (result != Z_OK && result != Z_BUF_ERROR)  // the latter wants more room, or more data
      return Status::error("{}: the gzip data is damaged ({})", name, z.msg ? z.msg : "not a gzip file");
    if (in == bytes.size() && z.avail_out > 0)
      return Status::error("{}: the gzip data is cut off after {}", name, counted(bytes.size(), "byte"));
  }
  if (static_cast<int64_t>(made) > limit)
    return Status::error("{}: unpacks to more than {} bytes, which is the limit", name, limit);
  out.resize(made);
  return out;
}

Result<std::string> inflate_exactly(std::string_view bytes, int64_t size, std::string_view name) {
  if (size < 0 || size > static_cast<int64_t>(bytes.size()) * kBestRatio + 64)
    return Status::error("{}: claims to hold {} bytes in {} compressed ones, which is impossible", name, size,
                         bytes.size());
  Inflater inflater(-15);
  auto& [z, ready, in, made] = inflater;
  std::string out(static_cast<size_t>(size) + 1, '\0');  // one more, to see a stream that is too long
  int result = Z_OK;
  while (result == Z_OK && made < out.size()) result = inflater.step(bytes, out);
  if (result == Z_MEM_ERROR) return Status::error("{}: out of memory", name);
  if (result != Z_STREAM_END || in != bytes.size() || static_cast<int64_t>(made) != size)
    return Status::error("{}: the compressed data is damaged ({})", name,
                         result == Z_DATA_ERROR && z.msg            ? z.msg
                         : result == Z_STREAM_END || result == Z_OK ? "its size is not what the file says"
                                                                    : "it is cut off");
  out.resize(made);
  return out;
}

}  // namespace gacc
