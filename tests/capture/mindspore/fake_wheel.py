"""A MindSpore wheel of a few hundred lines less: its Ascend plugin, and the two parts of it that our own libraries meet.

C++ below ──> compiled ──> mindspore/version.py, mindspore/lib/..., laid out as in the real wheel
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from windtunnel.capture.mindspore.cann.build import find_compiler

CORE = 'extern "C" int core_function() { return 7; }\nextern "C" int aclOfTheWheel() { return 8; }\n'

# Uses CANN as MindSpore does: linked, looked up by name, and through C++ objects.
PLUGIN = r"""
#include <dlfcn.h>
#include <string.h>
#include <memory>
#include <string>
#include <vector>
extern "C" {
int aclInit(const char *); int HcclSend(); int core_function(); int aclOfTheWheel();
const char *aclrtGetSocName(); int aclrtGetDevice(int *);
int not_needed_to_load() __attribute__((weak));
}
namespace ge {
struct AscendString {
  std::shared_ptr<std::string> name; AscendString(const char *); const char *GetString() const;
  bool operator<(const AscendString &) const;
};
struct Shape {
  std::shared_ptr<void> dims; Shape(); explicit Shape(const std::vector<long> &);
  std::vector<long> GetDims() const; size_t GetDimNum() const; long GetDim(size_t) const;
};
struct TensorDesc { std::shared_ptr<void> inside; TensorDesc(); Shape GetShape() const; };
struct Promote { std::unique_ptr<int> inside; Promote(int); };
struct Operator {
  virtual ~Operator() = default; std::shared_ptr<void> inside; Operator(const char *);
  std::string GetName() const; Operator &SetAttr(const char *, bool); unsigned GetAttr(const char *, bool &) const;
};
struct OperatorFactory { static Operator CreateOperator(const std::string &, const std::string &); };
struct StatusFactory { static StatusFactory *Instance(); };
}  // namespace ge
extern "C" {
const char *texts[] = {"aclrtLookedUp", "HcclAlsoLookedUp", "aclnnMatmul", "aclOfTheWheel",
                       "acl_not_a_call", "rtol", "see aclrtThis", "/lib64/libopened.so", "libnot_below_cann.so"};
int step_of_failure() {
  if (aclInit(0) || HcclSend() || core_function() != 7 || aclOfTheWheel() != 8) return 1;
  ge::AscendString a("a"), b("b"), none(nullptr);
  if (!(a < b) || b < a || strcmp(a.GetString(), "a") || strcmp(none.GetString(), "")) return 2;
  ge::Shape shape(std::vector<long>{2, 3}), copy = shape, empty;
  if (copy.GetDims() != std::vector<long>{2, 3} || copy.GetDim(1) != 3 || copy.GetDim(5) || empty.GetDimNum()) return 3;
  char around[3 * sizeof(ge::Promote)];
  memset(around, 1, sizeof around);
  auto *promote = new (around + sizeof(ge::Promote)) ge::Promote(0);
  if (promote->inside || around[sizeof(ge::Promote) - 1] != 1 || around[2 * sizeof(ge::Promote)] != 1) return 4;
  { ge::TensorDesc desc, second = desc; if (second.GetShape().GetDimNum()) return 5; }
  bool value = true;
  ge::Operator op("x"), made = ge::OperatorFactory::CreateOperator(std::string("n"), std::string("t"));
  if (&op.SetAttr("k", true) != &op || op.inside || made.GetName() != "" || !op.GetAttr("k", value) || !value) return 6;
  if (ge::StatusFactory::Instance() != ge::StatusFactory::Instance()) return 7;
  int device = -1;
  if (aclrtGetDevice(&device) || device) return 8;
  void *thin = dlopen("libhccl.so", RTLD_NOW);
  if (!thin || !dlsym(thin, "aclrtLookedUp") || dlsym(thin, "never_heard_of")) return 9;
  return 0;
}
const char *soc() { return aclrtGetSocName(); }
}
"""

# MindSpore's memory tracker: the members before the tick and the names of its functions are the wheel's.
TRACKER = r"""
#include <stdlib.h>
#include <mutex>
#include <string>
#include <vector>
namespace mindspore { namespace device { namespace tracker {
using S = const std::string &;
struct MemTracker { virtual void AddTask(S, S, S, S, size_t) = 0; virtual ~MemTracker() = default; bool debug = false; };
struct MemoryTrackerEnabled : MemTracker {
  std::mutex mutex; long tick = 40; std::string rows;
  void AddTask(S task, S node, S graph, S file, size_t) override {
    rows += std::to_string(tick++) + "," + task + "," + node + "," + graph + "," + file + "\n";
  }
  void Dump(size_t rank); void DumpMemoryBlock(size_t rank); void DumpTaskFile(size_t rank);
};
void MemoryTrackerEnabled::Dump(size_t rank) { rows += "dump " + std::to_string(rank) + "\n"; }
#ifndef OLDER
void MemoryTrackerEnabled::DumpMemoryBlock(size_t rank) { rows += "blocks " + std::to_string(rank) + "\n"; }
void MemoryTrackerEnabled::DumpTaskFile(size_t rank) { rows += "tasks " + std::to_string(rank) + "\n"; }
#endif
struct MemoryTrackerDisabled : MemTracker { void AddTask(S, S, S, S, size_t) override { abort(); } };
MemoryTrackerEnabled on; MemoryTrackerDisabled off;
struct MemTrackerManager { static MemTracker &GetInstance(); };
MemTracker &MemTrackerManager::GetInstance() {
  return getenv("TRACKER_OFF") ? static_cast<MemTracker &>(off) : static_cast<MemTracker &>(on);
}
}}}
extern "C" const char *rows() { return mindspore::device::tracker::on.rows.c_str(); }
"""

# The list of communications of a dry run: reads the shapes of both tensors, as MindSpore does.
ORDER = r"""
#include <memory>
#include <string>
namespace mindspore {
namespace kernel { namespace pyboost { struct OpRunner {}; } }
namespace tensor { struct Tensor { long shape; }; }
struct ExecuteOrderTracker {
  long total = 0;
  void ProcessPyboostCommOp(const std::shared_ptr<kernel::pyboost::OpRunner> &, const std::string &, size_t,
                            const std::shared_ptr<tensor::Tensor> &, const std::shared_ptr<tensor::Tensor> &, long);
};
#ifdef CALLER
using T = std::shared_ptr<tensor::Tensor>;
extern "C" long communicate(long input, long output) {
  ExecuteOrderTracker tracker;
  auto tensor = [](long shape) { return shape ? std::make_shared<tensor::Tensor>(tensor::Tensor{shape}) : T(); };
  tracker.ProcessPyboostCommOp(nullptr, "group", 1, tensor(input), tensor(output), 0);
  return tracker.total;
}
#else
void ExecuteOrderTracker::ProcessPyboostCommOp(
    const std::shared_ptr<kernel::pyboost::OpRunner> &, const std::string &, size_t,
    const std::shared_ptr<tensor::Tensor> &input, const std::shared_ptr<tensor::Tensor> &output, long) {
  total += 100 * input->shape + output->shape;
}
#endif
}
"""


def make_wheel(folder: Path, version: str = "9.8.7") -> Path:
    """Write and compile the wheel; the folder to give to `stubs_for`."""
    wheel = folder / "mindspore"
    ascend = wheel / "lib" / "plugin" / "ascend"
    ascend.mkdir(parents=True)
    (wheel / "version.py").write_text(f"__version__ = '{version}'\n")
    cann = folder / "linked_with"
    cann.mkdir()
    for name in ("libascendcl.so", "libhccl.so", "libatb.so"):
        compile_library(cann / name, "")
    core = wheel / "lib" / "libmindspore_core.so"
    compile_library(core, CORE)
    needs = [f"-L{cann}", "-l:libascendcl.so", "-l:libhccl.so", str(core), "-Wl,-rpath,$ORIGIN/..", "-ldl"]
    compile_library(wheel / "lib" / "plugin" / "libmindspore_ascend.so.2", PLUGIN, *needs)
    add_on = 'extern "C" int atbOnly(); extern "C" int use() { return atbOnly(); }'
    compile_library(ascend / "libadd_on.so", add_on, f"-L{cann}", "-l:libatb.so")
    other_machine = bytearray(core.read_bytes())
    other_machine[18:20] = b"\x08\x00"  # MIPS
    (ascend / "libother_machine.so").write_bytes(other_machine)
    (ascend / "libbroken.so").write_bytes(b"\x7fELF, and no more")
    return wheel


def compile_library(path: Path, source: str, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [*find_compiler(), "-std=c++17", "-O0", "-fPIC", "-shared", "-w", "-Wl,--no-as-needed"]
    command += [
        "-Wl,--unresolved-symbols=ignore-all",
        f"-Wl,-soname,{path.name}",
        "-o",
        str(path),
        "-x",
        "c++",
        "-",
    ]
    subprocess.run([*command, "-x", "none", *options], input=source, text=True, check=True)
    return path
