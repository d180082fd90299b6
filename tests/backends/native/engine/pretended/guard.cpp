// A device guard that does nothing. With it, a torch that was built for CPUs believes that there is one such device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
template <c10::DeviceType type>
struct OneDevice : c10::impl::NoOpDeviceGuardImpl<type> {
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
const OneDevice<c10::DeviceType::CUDA> cuda;
const OneDevice<c10::DeviceType::XPU> xpu;
const c10::impl::DeviceGuardImplRegistrar register_cuda(c10::DeviceType::CUDA, &cuda);
const c10::impl::DeviceGuardImplRegistrar register_xpu(c10::DeviceType::XPU, &xpu);
} // namespace
