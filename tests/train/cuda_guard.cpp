// Lets a build of PyTorch without CUDA run autograd over fake CUDA tensors: one device, one stream.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
using namespace c10;
struct Guard final : impl::DeviceGuardImplInterface {
  static thread_local Device here;
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device d) const override { auto was = here; here = d; return was; }
  Device getDevice() const override { return here; }
  void setDevice(Device d) const override { here = d; }
  void uncheckedSetDevice(Device d) const noexcept override { here = d; }
  Stream getStream(Device d) const noexcept override { return Stream(Stream::DEFAULT, d); }
  Stream getDefaultStream(Device d) const override { return Stream(Stream::DEFAULT, d); }
  Stream getNewStream(Device d, int = 0) const override { return Stream(Stream::DEFAULT, d); }
  Stream exchangeStream(Stream s) const noexcept override {
    return Stream(Stream::DEFAULT, s.device());
  }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};
thread_local Device Guard::here{DeviceType::CUDA, 0};
}  // namespace
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
namespace at {
struct CUDAHooks final : CUDAHooksInterface {  // PyTorch looks this name up.
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
