// Checks that csrc/xla/ffi_abi.hpp is compatible with XLA's header. Compiled by a test only.
#include "../../csrc/xla/ffi_abi.hpp"
#include "xla/ffi/api/c_api.h"

namespace abi = onedsl::xla::abi;

#define SAME(ours, our_field, theirs, their_field)                                \
  static_assert(offsetof(abi::ours, our_field) == offsetof(theirs, their_field)); \
  static_assert(sizeof(abi::ours{}.our_field) == sizeof(theirs{}.their_field))

SAME(Extension, type, XLA_FFI_Extension_Base, type);
SAME(Extension, next, XLA_FFI_Extension_Base, next);
static_assert(abi::Extension::metadata == XLA_FFI_Extension_Metadata);
static_assert(sizeof(abi::Extension) == sizeof(XLA_FFI_Extension_Base));

SAME(Version, major, XLA_FFI_Api_Version, major_version);
SAME(Version, minor, XLA_FFI_Api_Version, minor_version);
static_assert(sizeof(abi::Version) == sizeof(XLA_FFI_Api_Version));
static_assert(abi::Version::known_major == XLA_FFI_API_MAJOR);
SAME(Metadata, version, XLA_FFI_Metadata, api_version);
SAME(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);

SAME(ErrorArguments, message, XLA_FFI_Error_Create_Args, message);
SAME(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
static_assert(sizeof(abi::ErrorArguments) >= XLA_FFI_Error_Create_Args_STRUCT_SIZE);
static_assert(abi::invalid_argument == int{XLA_FFI_Error_Code_INVALID_ARGUMENT});
static_assert(abi::resource_exhausted == int{XLA_FFI_Error_Code_RESOURCE_EXHAUSTED});
static_assert(abi::internal == int{XLA_FFI_Error_Code_INTERNAL});
SAME(Api, version, XLA_FFI_Api, api_version);
SAME(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(Api, destroy_error, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME(Api, schedule, XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule);
SAME(Api, num_threads, XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads);
SAME(DestroyArguments, error, XLA_FFI_Error_Destroy_Args, error);
static_assert(sizeof(abi::DestroyArguments) >= XLA_FFI_Error_Destroy_Args_STRUCT_SIZE);

SAME(ScheduleArguments, context, XLA_FFI_ThreadPool_Schedule_Args, ctx);
SAME(ScheduleArguments, task, XLA_FFI_ThreadPool_Schedule_Args, task);
SAME(ScheduleArguments, data, XLA_FFI_ThreadPool_Schedule_Args, data);
static_assert(sizeof(abi::ScheduleArguments) >= XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE);
SAME(NumThreadsArguments, context, XLA_FFI_ThreadPool_NumThreads_Args, ctx);
SAME(NumThreadsArguments, count, XLA_FFI_ThreadPool_NumThreads_Args, num_threads);
static_assert(sizeof(abi::NumThreadsArguments) >= XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE);

SAME(Buffer, type, XLA_FFI_Buffer, dtype);
SAME(Buffer, data, XLA_FFI_Buffer, data);
SAME(Buffer, rank, XLA_FFI_Buffer, rank);
SAME(Buffer, sizes, XLA_FFI_Buffer, dims);
static_assert(abi::f32 == int{XLA_FFI_DataType_F32} && abi::f64 == int{XLA_FFI_DataType_F64});
static_assert(abi::f16 == int{XLA_FFI_DataType_F16} && abi::bf16 == int{XLA_FFI_DataType_BF16});
static_assert(abi::s64 == int{XLA_FFI_DataType_S64});

SAME(Buffers, count, XLA_FFI_Args, size);
SAME(Buffers, items, XLA_FFI_Args, args);
SAME(Buffers, items, XLA_FFI_Rets, rets);
static_assert(sizeof(abi::Buffers) == XLA_FFI_Args_STRUCT_SIZE);
static_assert(sizeof(abi::Buffers) == XLA_FFI_Rets_STRUCT_SIZE);

SAME(Text, begin, XLA_FFI_ByteSpan, ptr);
SAME(Text, length, XLA_FFI_ByteSpan, len);
SAME(Scalar, type, XLA_FFI_Scalar, dtype);
SAME(Scalar, value, XLA_FFI_Scalar, value);
SAME(Attrs, count, XLA_FFI_Attrs, size);
SAME(Attrs, types, XLA_FFI_Attrs, types);
SAME(Attrs, names, XLA_FFI_Attrs, names);
SAME(Attrs, items, XLA_FFI_Attrs, attrs);
static_assert(sizeof(abi::Attrs) == XLA_FFI_Attrs_STRUCT_SIZE);
static_assert(abi::scalar == int{XLA_FFI_AttrType_SCALAR});
static_assert(abi::string == int{XLA_FFI_AttrType_STRING});

SAME(CallFrame, api, XLA_FFI_CallFrame, api);
SAME(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
static_assert(sizeof(abi::CallFrame) == XLA_FFI_CallFrame_STRUCT_SIZE);
