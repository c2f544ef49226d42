// Marks in MindSpore's own memory tracker: rows of ours between its rows, its files before the process ends.
//
//   ctypes ──> windtunnel_mark(...) ──> MemoryTrackerEnabled::AddTask ──> a row in task.csv, one tick later
//
// The tracker lives in a library of the wheel that is loaded already; its functions are looked up there by name, so
// nothing of MindSpore is needed to compile this. Every call answers with a code: 0 done, 1 the tracker's library is
// not loaded, 2 this wheel's tracker has other functions, 3 the tracker is switched off (MS_ALLOC_CONF).

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#define TRACKER "_ZN9mindspore6device7tracker"
#if _GLIBCXX_USE_CXX11_ABI
#define FOUR_STRINGS "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESA_SA_SA_"
#else
#define FOUR_STRINGS "RKSsS4_S4_S4_"
#endif
#define EXPORTED __attribute__((visibility("default")))

namespace {

using Text = const std::string &;

enum Code { kDone = 0, kNotLoaded = 1, kOtherVersion = 2, kSwitchedOff = 3 };

// How MemoryTrackerEnabled begins, by its header in the wheel.
struct Head {
  void *virtual_table;
  bool debug_info;
  std::mutex lock;
  int64_t tick;
};

struct Tracker {
  Code code = kNotLoaded;
  Head *self = nullptr;
  void (*add_task)(Head *, Text task, Text node, Text graph, Text file, size_t line) = nullptr;
  void (*dump)(Head *, size_t rank) = nullptr;
  void (*dump_blocks)(Head *, size_t rank) = nullptr;
  void (*dump_tasks)(Head *, size_t rank) = nullptr;
  bool tick_proven = false;  // a task was added and what we take for the tick went up
};

const char kAddTask[] = TRACKER "20MemoryTrackerEnabled7AddTaskE" FOUR_STRINGS "m";

int remember_name(dl_phdr_info *info, size_t, void *names) {
  static_cast<std::vector<std::string> *>(names)->push_back(info->dlpi_name ? info->dlpi_name : "");
  return 0;
}

void *tracker_library() {
  std::vector<std::string> names = {"libmindspore_memory_pool.so"};  // where it is in 2.10; else ask them all
  dl_iterate_phdr(remember_name, &names);
  for (const auto &name : names) {
    void *library = name.empty() ? nullptr : dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library && dlsym(library, kAddTask)) return library;
    if (library) dlclose(library);
  }
  return nullptr;
}

template <typename Function>
void look_up(void *library, const char *name, Function *function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
}

Tracker find_tracker() {
  Tracker found;
  void *library = tracker_library();
  if (!library) {
    void *pool = dlopen("libmindspore_memory_pool.so", RTLD_LAZY | RTLD_NOLOAD);
    found.code = pool ? kOtherVersion : kNotLoaded;
    return found;
  }
  Head *(*instance)() = nullptr;
  look_up(library, TRACKER "17MemTrackerManager11GetInstanceEv", &instance);
  look_up(library, kAddTask, &found.add_task);
  look_up(library, TRACKER "20MemoryTrackerEnabled4DumpEm", &found.dump);
  look_up(library, TRACKER "20MemoryTrackerEnabled15DumpMemoryBlockEm", &found.dump_blocks);
  look_up(library, TRACKER "20MemoryTrackerEnabled12DumpTaskFileEm", &found.dump_tasks);
  auto *table = static_cast<void **>(dlsym(library, "_ZTVN9mindspore6device7tracker20MemoryTrackerEnabledE"));
  if (!instance || !table || !found.add_task) {
    found.code = kOtherVersion;
    return found;
  }
  found.self = instance();
  // Behind the first two words, which are for dynamic_cast. A tracker that is off is of another class.
  found.code = found.self->virtual_table == table + 2 ? kDone : kSwitchedOff;
  return found;
}

// Looked up again until it is there: a script may load this before it loads MindSpore's device.
Tracker &tracker() {
  static std::mutex lock;
  static Tracker found;
  std::lock_guard<std::mutex> guard(lock);
  if (found.code == kNotLoaded) found = find_tracker();
  return found;
}

int64_t tick_of(const Tracker &found) { return __atomic_load_n(&found.self->tick, __ATOMIC_RELAXED); }

std::string text(const char *given) { return given ? given : ""; }

}  // namespace

extern "C" {

EXPORTED int windtunnel_state() { return tracker().code; }

// The tick that the next row will have, -1 as long as no mark was set or where it cannot be known.
EXPORTED int64_t windtunnel_tick() {
  const Tracker &found = tracker();
  return found.code == kDone && found.tick_proven ? tick_of(found) : -1;
}

EXPORTED int windtunnel_mark(const char *task, const char *node, const char *graph) {
  Tracker &found = tracker();
  if (found.code != kDone) return found.code;
  const int64_t before = tick_of(found);
  found.add_task(found.self, text(task), text(node), text(graph), "windtunnel", 0);
  if (tick_of(found) > before) found.tick_proven = true;
  return kDone;
}

// All three files. MindSpore takes this for the end: an operator after it raises, and there is no second dump at exit.
EXPORTED int windtunnel_dump(unsigned long rank) {
  const Tracker &found = tracker();
  if (found.code != kDone) return found.code;
  if (!found.dump) return kOtherVersion;
  found.dump(found.self, rank);
  return kDone;
}

// memory_block.csv and task.csv as they are now, without tracker_graph.ir; the program may go on. Any thread may call
// this: the tracker's own lock is held meanwhile, as its Dump does. It is where we think it is if the tick behind it is.
EXPORTED int windtunnel_snapshot(unsigned long rank) {
  const Tracker &found = tracker();
  if (found.code != kDone) return found.code;
  if (!found.dump_blocks || !found.dump_tasks || !found.tick_proven) return kOtherVersion;
  std::lock_guard<std::mutex> guard(found.self->lock);
  found.dump_blocks(found.self, rank);
  found.dump_tasks(found.self, rank);
  return kDone;
}
}
