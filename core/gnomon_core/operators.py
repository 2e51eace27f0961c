"""The operators that a layer program may use: everything else is refused by name, at capture and again before it runs.

Each is functional (none changes an argument), gives the same answer each time (no random numbers), and has a result whose size
follows from the sizes of its arguments and its constants (no `nonzero`, no `unique`), so that a program's memory is known before
it runs. None reads a file, adopts a storage, or sees memory beyond its arguments: `from_file`, `set_`, `resize_` and `as_strided`
are ATen names too.
"""

from __future__ import annotations

_CONVOLUTION = """
    conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding convolution.default
    conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input
"""
_PRODUCTS = """
    linear.default matmul.default mm.default bmm.default addmm.default baddbmm.default einsum.default
    scaled_dot_product_attention.default
"""
_NORMALISATION = """
    _native_batch_norm_legit_no_training.default layer_norm.default native_layer_norm.default
    group_norm.default native_group_norm.default instance_norm.default rms_norm.default linalg_vector_norm.default
"""
_POOLING = """
    max_pool1d.default max_pool2d.default max_pool3d.default max_pool2d_with_indices.default max_pool3d_with_indices.default
    avg_pool1d.default avg_pool2d.default avg_pool3d.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default
    adaptive_max_pool1d.default adaptive_max_pool2d.default _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default
"""
_ACTIVATIONS = """
    relu.default relu6.default leaky_relu.default elu.default selu.default celu.default gelu.default silu.default mish.default
    sigmoid.default hardsigmoid.default hardswish.default hardtanh.default tanh.default softplus.default log_sigmoid.default
    prelu.default _prelu_kernel.default threshold.default glu.default
    softmax.int log_softmax.int _softmax.default _log_softmax.default
"""
_ARITHMETIC = """
    add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
    div.Tensor_mode div.Scalar_mode pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar remainder.Scalar remainder.Tensor fmod.Scalar
    fmod.Tensor floor_divide.default maximum.default minimum.default lerp.Tensor lerp.Scalar addcmul.default addcdiv.default
    neg.default abs.default sqrt.default rsqrt.default square.default reciprocal.default exp.default expm1.default log.default
    log1p.default log2.default sin.default cos.default tan.default atan.default atan2.default erf.default sign.default
    floor.default ceil.default round.default trunc.default isnan.default isinf.default nan_to_num.default clamp.default
    clamp.Tensor clamp_min.default clamp_max.default
"""
_LOGIC = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor
    logical_not.default logical_and.default logical_or.default logical_xor.default bitwise_not.default bitwise_and.Tensor
    bitwise_or.Tensor bitwise_xor.Tensor where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar masked_fill.Tensor
"""
_REDUCTIONS = """
    mean.dim mean.default sum.dim_IntList sum.default prod.dim_int amax.default amin.default max.dim min.dim argmax.default
    argmin.default var.correction var_mean.correction std.correction all.dim any.dim any.default all.default cumsum.default
    topk.default sort.default logsumexp.default
"""
_SHAPES = """
    view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int permute.default transpose.int t.default
    squeeze.default squeeze.dim squeeze.dims unsqueeze.default expand.default repeat.default repeat_interleave.self_int
    tile.default select.int slice.Tensor narrow.default split.Tensor split_with_sizes.default unbind.int cat.default stack.default
    roll.default flip.default movedim.int numpy_T.default pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default
    contiguous.default clone.default alias.default detach.default lift_fresh_copy.default to.dtype to.dtype_layout
    _to_copy.default type_as.default pad.default constant_pad_nd.default reflection_pad1d.default reflection_pad2d.default
    replication_pad2d.default tril.default triu.default diagonal.default slice_scatter.default select_scatter.default fill.Scalar
    zero.default copy.default
"""
_LOOKUPS = """
    embedding.default index.Tensor index_select.default gather.default scatter.src
    scatter.value index_put.default
"""
_NEW = """
    full.default zeros.default ones.default full_like.default zeros_like.default ones_like.default new_zeros.default
    new_ones.default new_full.default arange.default arange.start arange.start_step scalar_tensor.default eye.default
    linspace.default
"""
_RESAMPLING = """
    upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_nearest2d.default
    upsample_bilinear2d.vec upsample_bilinear2d.default upsample_bicubic2d.vec upsample_bicubic2d.default upsample_trilinear3d.vec
    grid_sampler.default grid_sampler_2d.default
"""

ALLOWED_OPERATORS = frozenset(
    f"aten.{name}"
    for family in (
        _CONVOLUTION,
        _PRODUCTS,
        _NORMALISATION,
        _POOLING,
        _ACTIVATIONS,
        _ARITHMETIC,
        _LOGIC,
        _REDUCTIONS,
        _SHAPES,
        _LOOKUPS,
        _NEW,
        _RESAMPLING,
    )
    for name in family.split()
)
