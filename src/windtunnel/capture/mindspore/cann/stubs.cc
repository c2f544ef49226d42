// Loader stubs for CANN, our own code: just enough for MindSpore's Ascend plugin to be loaded and to dry-run.
//
//   the generated list of weak functions that return nothing  +  these few with behaviour  ->  libascendcl.so
//
// At simulation level 0 and 1 MindSpore calls none of CANN's device functions. What it does call are constructors and
// getters of the graph classes while its libraries start, so those must leave objects that can be copied and
// destroyed. Only the size and the smart pointer of each class matter; they are the same on every machine. A function
// here wins over the generated one of the same name because that one is weak.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define EXPORTED __attribute__((visibility("default")))

namespace ge {

class EXPORTED AscendString {
 public:
  AscendString() = default;
  AscendString(const char *name);
  const char *GetString() const;
  bool operator<(const AscendString &other) const;

 private:
  std::shared_ptr<std::string> name_;
};

AscendString::AscendString(const char *name) : name_(std::make_shared<std::string>(name ? name : "")) {}
const char *AscendString::GetString() const { return name_ ? name_->c_str() : ""; }
bool AscendString::operator<(const AscendString &other) const {
  return std::string(GetString()) < std::string(other.GetString());
}

// MindSpore registers texts of error codes here while it starts, by code that is inline in CANN's header and works on
// the map itself. The rest is room for members that a later header may have.
class EXPORTED StatusFactory {
 public:
  static StatusFactory *Instance();

 private:
  std::map<uint32_t, std::string> texts_;
  uint64_t room_[64] = {};
};

StatusFactory *StatusFactory::Instance() {
  static auto *factory = new StatusFactory;  // never destroyed: libraries still ask for it while the process ends
  return factory;
}

class EXPORTED Shape {
 public:
  Shape();
  explicit Shape(const std::vector<int64_t> &dims);
  size_t GetDimNum() const;
  int64_t GetDim(size_t index) const;
  std::vector<int64_t> GetDims() const;
  int64_t GetShapeSize() const;

 private:
  std::shared_ptr<std::vector<int64_t>> dims_;
};

Shape::Shape() = default;
Shape::Shape(const std::vector<int64_t> &dims) : dims_(std::make_shared<std::vector<int64_t>>(dims)) {}
size_t Shape::GetDimNum() const { return dims_ ? dims_->size() : 0; }
int64_t Shape::GetDim(size_t index) const { return index < GetDimNum() ? (*dims_)[index] : 0; }
std::vector<int64_t> Shape::GetDims() const { return dims_ ? *dims_ : std::vector<int64_t>(); }
int64_t Shape::GetShapeSize() const {
  int64_t size = 1;
  for (int64_t dim : GetDims()) size *= dim;
  return size;
}

// Below: classes whose functions return objects by value. Such a result must be a real, if empty, object.
class EXPORTED TensorDesc {
 public:
  Shape GetShape() const;
  Shape GetOriginShape() const;

 private:
  std::shared_ptr<void> inside_;
};

Shape TensorDesc::GetShape() const { return Shape(); }
Shape TensorDesc::GetOriginShape() const { return Shape(); }

class EXPORTED Tensor {
 public:
  TensorDesc GetTensorDesc() const;

 private:
  std::shared_ptr<void> inside_;
};

TensorDesc Tensor::GetTensorDesc() const { return TensorDesc(); }

class EXPORTED Operator {
 public:
  virtual ~Operator() = default;
  std::string GetName() const;
  std::string GetOpType() const;
  TensorDesc GetOutputDesc(const std::string &name) const;
  TensorDesc GetOutputDesc(uint32_t index) const;

 private:
  std::shared_ptr<void> inside_;
};

std::string Operator::GetName() const { return std::string(); }
std::string Operator::GetOpType() const { return std::string(); }
TensorDesc Operator::GetOutputDesc(const std::string &) const { return TensorDesc(); }
TensorDesc Operator::GetOutputDesc(uint32_t) const { return TensorDesc(); }

class EXPORTED OperatorFactory {
 public:
  static Operator CreateOperator(const char *name, const char *type);
  static Operator CreateOperator(const std::string &name, const std::string &type);
};

Operator OperatorFactory::CreateOperator(const char *, const char *) { return Operator(); }
Operator OperatorFactory::CreateOperator(const std::string &, const std::string &) { return Operator(); }

class EXPORTED GNode {
 public:
  std::vector<std::shared_ptr<GNode>> GetInControlNodes() const;
  std::vector<std::shared_ptr<GNode>> GetOutControlNodes() const;
  std::pair<std::shared_ptr<GNode>, int32_t> GetInDataNodesAndPortIndexs(int32_t index) const;
  std::vector<std::pair<std::shared_ptr<GNode>, int32_t>> GetOutDataNodesAndPortIndexs(int32_t index) const;

 private:
  std::shared_ptr<void> inside_;
};

std::vector<std::shared_ptr<GNode>> GNode::GetInControlNodes() const { return {}; }
std::vector<std::shared_ptr<GNode>> GNode::GetOutControlNodes() const { return {}; }
std::pair<std::shared_ptr<GNode>, int32_t> GNode::GetInDataNodesAndPortIndexs(int32_t) const { return {}; }
std::vector<std::pair<std::shared_ptr<GNode>, int32_t>> GNode::GetOutDataNodesAndPortIndexs(int32_t) const {
  return {};
}

class EXPORTED Graph {
 public:
  std::vector<GNode> GetDirectNode() const;
  const std::string &GetName() const;

 private:
  std::shared_ptr<void> inside_;
};

std::vector<GNode> Graph::GetDirectNode() const { return {}; }
const std::string &Graph::GetName() const {
  static const auto *none = new std::string;
  return *none;
}

class CompiledGraphSummary;

class EXPORTED Session {
 public:
  std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t graph);
};

std::shared_ptr<CompiledGraphSummary> Session::GetCompiledGraphSummary(uint32_t) { return nullptr; }

}  // namespace ge

extern "C" {

// The chip that MindSpore is to believe in; it decides which kernels and layouts are chosen.
EXPORTED const char *aclrtGetSocName() {
  const char *chosen = std::getenv("WINDTUNNEL_SOC");
  return chosen && *chosen ? chosen : "Ascend910B2";
}

// MindSpore prints what this returns when a call fails; it must be a text.
EXPORTED const char *aclGetRecentErrMsg() { return "windtunnel's stub of CANN: there is no device here"; }

EXPORTED int aclrtGetDevice(int32_t *device) {
  *device = 0;
  return 0;
}

// Parsed as numbers by the compiler of fused kernels (jit level O1).
struct PackageVersion {
  char whole[128];
  char parts[4][64];  // major, minor, release, patch
  char reserved[128];
};

EXPORTED int aclsysGetCANNVersion(int, PackageVersion *version) {
  const char *parts[] = {"8", "5", "0", "0"};
  *version = PackageVersion{};
  std::strcpy(version->whole, "8.5.0");
  for (int i = 0; i < 4; ++i) std::strcpy(version->parts[i], parts[i]);
  return 0;
}
}
