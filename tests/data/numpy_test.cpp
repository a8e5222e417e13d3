// Files as NumPy itself writes them; skipped where Debian's python3 has no numpy.
#include <cstdlib>

#include "runtime/atomic_file.h"
#include "runtime/data/array.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

TEST(Numpy, ItsFilesAreReadInFull) {
  if (std::system("/usr/bin/python3 -c 'import numpy' >/dev/null 2>&1") != 0) GTEST_SKIP() << "no numpy";
  Folder folder;
  std::string script = folder.put("make.py", R"(
import numpy as np, os
os.chdir(os.path.dirname(__file__))
kinds = ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<i8", ">i8", "<u8", "<f2", "<f4", "<f8", ">f4", "?"]
arrays = {f"x{i}": (np.arange(12) % 7 - (3 if k.strip("<>")[0] in "if" else 0)).astype(k).reshape(3, 2, 2) for i, k in enumerate(kinds)}
for name, a in arrays.items():
    np.save(name + ".npy", a)
    want = a.astype(np.float32 if a.dtype == np.float16 else np.int64 if a.dtype in (np.uint32, np.uint64) else np.int8 if a.dtype == bool else a.dtype.newbyteorder("<"))
    want.tofile(name + ".raw")
np.savez("stored.npz", **arrays)
np.savez_compressed("packed.npz", **arrays)
)");
  ASSERT_EQ(std::system(("/usr/bin/python3 " + script).c_str()), 0);
  std::vector<NamedArray> stored, packed;
  std::vector<std::string> names;
  ASSERT_EQ(parse_npz(contents(folder.path("stored.npz")), "stored", nullptr, stored, names).text(), "");
  ASSERT_EQ(parse_npz(contents(folder.path("packed.npz")), "packed", nullptr, packed, names).text(), "");
  ASSERT_EQ(stored.size(), 14u);
  ASSERT_EQ(packed.size(), 14u);
  for (size_t i = 0; i < stored.size(); ++i) {
    std::string name = fmt::format("x{}", i);
    Array plain;
    ASSERT_EQ(parse_npy(contents(folder.path(name + ".npy")), name, plain).text(), "");
    std::string expected = contents(folder.path(name + ".raw"));
    for (const Array* array :
         std::initializer_list<const Array*>{&plain, &stored[i].array, &packed[i].array}) {
      EXPECT_EQ(array->shape, (std::vector<int64_t>{3, 2, 2})) << name;
      EXPECT_EQ(raw(array->bytes), expected) << name;
    }
  }
}

}  // namespace
}  // namespace gacc::test
