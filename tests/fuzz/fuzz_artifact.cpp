// libFuzzer target for the artifact. A random change of a whole file fails its checksum and stops there, so
// the target also puts a right first line before the input, which leads to the IR behind it and to the plan that
// is made of it.
#include <zlib.h>

#include "compiler/open_artifact.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  gacc::fuzz::check_status(gacc::read_artifact(text, "f").status());
  // The corpus holds whole artifacts: their first line is replaced.
  size_t line = text.find('\n');
  std::string_view body = line == std::string_view::npos ? text : text.substr(line + 1);
  auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  std::string whole =
      fmt::format("// gacc artifact {} bytes={} crc32={:08x}\n", gacc::kArtifactVersion, body.size(), crc);
  whole += body;
  gacc::Result<gacc::Artifact> read = gacc::read_artifact(whole, "f");
  gacc::fuzz::check_status(read.status());
  if (!read) return 0;
  gacc::Artifact artifact = read.take();
  // What was read is written, and reads the same again.
  const gacc::Result<gacc::Artifact> again = gacc::read_artifact(gacc::write_artifact(artifact), "f");
  if (!again || again->ir != artifact.ir || again->model != artifact.model) __builtin_trap();
  (void)gacc::check_artifact(artifact, "f");
  return 0;
}
