"""MindSpore's primitives by the kind of work they are: the words of op_classes for `ms.MatMul`, `ms.SwigluGrad`, ...

    names as the tracker and the graph write them ──> NAMES: class ──> op_classes

From the list of primitives in MindSpore 2.10's own headers. Communication is not here: a recording has it as collectives.
What is neither, such as an operator of the user's own, has no class.
"""

from __future__ import annotations

__all__ = ["NAMES"]

NAMES: dict[str, str] = {
    "free": """
        AShardIdentity AsStrided Assert BoolNot BroadcastToView COOTensorGetDenseShape COOTensorGetIndices
        COOTensorGetValues CSRTensorGetDenseShape CSRTensorGetIndices CSRTensorGetIndptr CSRTensorGetValues
        CellBackwardHook CheckBprop CheckNumerics ChunkView ConcatOffset ConcatOffsetV1 ConcatView Cond
        ConvertToDynamic CopyValueNodeData CreateSymmetricMemory DType DataFormatDimMap DataFormatVecPermute
        DeadNode Depend Detach DiagonalView DictInplaceSetItem DumpGradient DynamicBroadcastGradientArgs
        DynamicGetNextAscend DynamicGetNextV2 DynamicShape Empty EmptyLike EndGraph EndOfSequence EnvironAdd
        EnvironDestroyAll EnvironGet EnvironSet ErrorOnDynamicShapeInput Expand ExpandAs ExpandD ExpandDims
        ExpandDimsView Flatten FlattenExt FlattenGrad ForiLoop Format Free FusedPullWeight FusedPushWeight
        GeSwitch Generator GetData GetGrad GetNext GetNextFromQueue GetShape GetitemTensorIndexInfo
        GpuConvertToDynamicShape HistogramSummary HookBackward Identity IdentityN ImagView ImageSummary InSequence
        InitDataSetQueue InplaceStopGradient InsertGemV2InBackward InsertGradientOf IsCSRFunc IsConstant
        IsInstance IsParameter IsSubClass JoinedStr LabelGoto LabelSet LabelSwitch ListAppend
        ListAppendAndInsertGrad ListInplaceAppend ListInplaceClear ListInplaceExtend ListInplaceInsert
        ListInplacePop ListInplaceReverse ListInsert ListToTensor ListToTuple Load MakeCOOTensor MakeCSRTensor
        MakeList MakeMapParameter MakeRowTensor MapTensorErase MapTensorGet MapTensorGetData
        MapTensorGetDefaultValue MapTensorGetEvictFilterValue MapTensorGetGrad MapTensorGetKeys
        MapTensorGetPermitFilterValue MapTensorGetValues MapTensorPut MapTensorPutWithStatus Merge Morph
        NPUAllocFloatStatus NPUClearFloatStatus NPUClearFloatStatusV2 NPUGetFloatStatus NPUGetFloatStatusV2 Narrow
        NarrowView NewEmpty NonZeroWithValueShape OutfeedEnqueueOpV2 Partial PartitionedCall Print
        PriorityReplayBufferCreate PriorityReplayBufferDestroy PriorityReplayBufferPush PriorityReplayBufferSample
        PriorityReplayBufferUpdate Pull PullWeight Push PushWeight PyExecute PyFunc PyInterpret QueueData Rank
        RealMakeTuple RealTupleGetItem RealView RefToEmbed ResLimit ReservoirReplayBufferCreate
        ReservoirReplayBufferDestroy ReservoirReplayBufferPush ReservoirReplayBufferSample Reshape ReshapeExt
        ReshapeView Reshard Reusing RowTensorGetDenseShape RowTensorGetIndices RowTensorGetValues SameTypeShape
        ScalarAdd ScalarBool ScalarCast ScalarDiv ScalarEq ScalarFloor ScalarFloorDiv ScalarGe ScalarGt ScalarLe
        ScalarLog ScalarLt ScalarMax ScalarMin ScalarMod ScalarMul ScalarPow ScalarSub ScalarSummary ScalarTrunc
        ScalarUadd ScalarUsub Scan SelectExtView SelectView SequenceAdd SequenceAddN SequenceAddOffset
        SequenceConcat SequenceCount SequenceIndex SequenceMax SequenceMin SequenceMul SequenceSlice
        SequenceSliceGrad SequenceSliceSetItem SequenceStack SequenceUnstack SequenceZerosLike SetData SetSize
        SetitemTensorIndexInfo Shape ShapeCalc ShapeMulGrad Size SliceExtView SliceGetItem SparseMatrixNNZ
        SplitTensorView SplitView SplitWithSizeView Squeeze StackDestroy StackInit StackPop StackPush StopGradient
        StreamActive StreamRecv StreamSend StreamSwitch StringLength StringLower StringUpper TExt TensorDump
        TensorReport TensorShape TensorSummary TensorToList TensorToScalar TensorToTuple TileSize TopTypeof
        TraceGraph TransposeExtView TransposeView TupleToArray TupleToList TupleToTensor Unsqueeze UnstackExtView
        UpdateOutputDeviceAddress UpdateState View ViewAs ViewDtype WhileLoop
    """,
    "matmul": """
        Addbmm Addmm Addmv AllGatherMatmul AlltoAllAllGatherBatchMatMul Baddbmm BatchMatMul BatchMatMulExt
        BatchMatMulReduceScatterAlltoAll BatchMatMulV2 COOTensorDenseMatmul CSRMM CSRMV CusBatchMatMul
        CusMatMulCube CusMatMulCubeDenseLeft CusMatMulCubeDenseRight CusMatMulCubeFraczLeftCast
        CusMatMulCubeFraczRightMul DSDGrad DSDMatmul Dense DenseGrad Dot Einsum EinsumExt EinsumGrad FFN FFNExt
        FusedMatMulBiasAdd FusedMatmulElemBinary FusedMatmulElemUnary Ger Gmm GmmBackward GmmBackwardFusion GmmV2
        GmmV2Backward GmmV2BackwardFusion GroupedMatmul GroupedMatmulV2 GroupedMatmulV4 InplaceAddmm InplaceAddr
        InplaceGroupedMatmulAdd InplaceMatmulAdd MatMul MatMulAllReduce MatMulBiasAddFusion
        MatMulBiasAddReluFusion MatMulExt MatMulV2 MatmulAllReduceAddRmsNorm MatmulBiasSplitOut2
        MatmulBiasSplitOut3 MatmulBiasSplitSiluOut2 MatmulDDS MatmulDDSGrad MatmulReduceScatter MatmulSplitOut2
        MatmulSplitOut3 MatmulSplitSiluFastgeluAddMulOut1 MatmulSplitSiluMulOut1 MatmulSplitSiluOut2 Mm Mv Outer
        QMatmulSplitSiluFastgeluAddMulOut1 QMatmulSplitSiluMulOut1 QbmmAllReduceAdd QuantBatchMatmul
        QuantBatchMatmulAllReduce QuantLinearSparse QuantMatmul QuantbatchmatmulSplitOut2
        QuantbatchmatmulSplitOut3 QuantbatchmatmulSplitSiluOut2 SparseAddmm SparseMatrixMatMul
        SparseMatrixSparseMatMul SparseTensorDenseMatmul Sspaddmm TransposeBatchMatmulTranspose TridiagonalMatMul
        Vdot WeightQuantBatchMatmul WeightQuantMatmulFfn WeightQuantMatmulQkv
    """,
    "convolution": """
        Col2Im Col2ImExt Col2ImGrad Conv1DExt Conv1DPadding Conv2D Conv2DBackpropFilter Conv2DBackpropFilterD
        Conv2DBackpropInput Conv2DBackpropInputD Conv2DExt Conv2DPadding Conv2DTranspose Conv2DTransposeD Conv3D
        Conv3DBackpropFilter Conv3DBackpropFilterD Conv3DBackpropInput Conv3DBackpropInputD Conv3DExt
        Conv3DPadding Conv3DTranspose Conv3DTransposeD ConvBN1 ConvTbc ConvTranspose2D Convolution ConvolutionGrad
        ConvolutionStr ConvolutionStrGrad Correlate CusImg2Col DeformableConv2d DeformableOffsets
        DeformableOffsetsGrad DepthwiseConv2D DepthwiseConv2DBackpropFilter DepthwiseConv2DBackpropFilterD
        DepthwiseConv2DBackpropInput DepthwiseConv2DBackpropInputD DepthwiseConv2dNative
        DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropFilterD
        DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropInputD Dilation2D Dilation2DBackpropFilter
        Dilation2DBackpropInput ExtractImagePatches ExtractVolumePatches FusedDbnDw
        FusionOp_Conv2DBackpropInput_AddN_ReluGradV2 FusionOp_Conv2DBackpropInput_ReluGradV2 Im2Col Im2ColExt
        Im2col LoadIm2Col NewIm2Col ThorIm2Col
    """,
    "attention": """
        FlashAttentionScore FusedInferAttentionScore IncreFlashAttention LightningIndexer Mla MlaPreprocess
        MultiScaleDeformableAttn NsaCompress NsaCompressAttention NsaSelectAttention PagedAttention
        PagedAttentionMask PromptFlashAttention SparseFlashAttention SpeedFusionAttention
    """,
    "attention backward": """
        FlashAttentionScoreGrad LightningIndexerGrad MultiScaleDeformableAttnGrad NsaCompressGrad
        NsaSelectAttentionGrad SparseFlashAttentionGrad SpeedFusionAttentionGrad
    """,
    "recurrent": """
        BasicLSTMCell BasicLSTMCellCStateGrad BasicLSTMCellCStateGradV2 BasicLSTMCellInputGrad
        BasicLSTMCellWeightGrad CudnnGRU DynamicGRUV2 DynamicGRUV2Grad DynamicRNN DynamicRNNGrad GRUV2 GRUV2Grad
        GRUV2HiddenGrad GRUV2HiddenGradCell GruGradData GruGradWeight LSTM LSTMGrad LSTMGradData LSTMGradWeight
        LSTMInputGrad LSTMV2 WKV WKVGrad
    """,
    "elementwise": """
        ACos ACosGrad Abs AbsGrad AccumulateNV2 AcosExt AcosGrad Acosh AcoshExt AcoshGrad ActULQClampMaxGrad
        ActULQClampMinGrad ActsULQ ActsULQInputGrad Add AddExt AddN AddScalar AddV2 Addcdiv AddcdivExt Addcmul
        AddcmulExt AdjustContrastv2 AdjustHue AdjustSaturation Angle AntiQuant ApplyRotaryPosEmb ApproximateEqual
        Asin AsinExt AsinGrad Asinh AsinhExt AsinhGrad AssignAdd AssignSub Atan Atan2 Atan2Ext AtanExt AtanGrad
        Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
        BesselY0 BesselY1 Betainc BiasAdd BitwiseAnd BitwiseAndScalar BitwiseAndTensor BitwiseNot BitwiseOr
        BitwiseOrScalar BitwiseOrTensor BitwiseXor BitwiseXorScalar BitwiseXorTensor BoundingBoxDecode
        BoundingBoxEncode CSRDiv CSRMul CeLU Ceil CeluV2 ClampMin ClampScalar ClampTensor ClipByValue
        CompareAndBitpack Complex ComplexAbs ConfusionMulGrad Conj CorrectionMul CorrectionMulGrad
        CorrectionMulGradReduce Cos Cosh Cross Dequant DequantSwigluQuant Digamma Div DivMod DivMods DivNoNan Divs
        DropOutDoMask DropOutDoMaskV3 DropOutDoMaskV3D DropoutDoMask DropoutDoMaskExt DropoutDoMaskV3 DropoutGrad
        DropoutGradExt DynamicBlockQuant DynamicNTK DynamicQuantExt Elu EluExt EluGrad EluGradExt EluGradV2
        EqScalar Equal Erf Erfc Erfinv Exp Exp2 Expm1 FakeLearnedScaleQuantPerChannel
        FakeLearnedScaleQuantPerChannelGrad FakeLearnedScaleQuantPerChannelGradD
        FakeLearnedScaleQuantPerChannelGradDReduce FakeLearnedScaleQuantPerLayer FakeLearnedScaleQuantPerLayerGrad
        FakeLearnedScaleQuantPerLayerGradD FakeLearnedScaleQuantPerLayerGradDReduce FakeQuantParam
        FakeQuantPerChannel FakeQuantPerChannelGrad FakeQuantPerLayer FakeQuantPerLayerGrad
        FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
        FakeQuantWithMinMaxVarsPerChannelGradient FastGeLU FastGeLUGrad FastGelu FastGeluGrad Floor FloorDiv
        FloorDivScalar FloorMod Fmax Fmin FmodScalar FmodTensor Frac FusedMulAdd FusedMulAddN GLU Gcd GeLU
        GeLUGrad Gelu GeluExt GeluGrad GeluGradExt GluGrad Greater GreaterEqual GreaterEqualScalar HSVToRGB
        HShrink HShrinkGrad HSigmoid HSigmoidGrad HSwish HSwishGrad HardShrink HardShrinkGrad HardSigmoid
        HardSigmoidGrad HardSwish HardSwishGrad Hardtanh HardtanhGrad Heaviside Hypot Igamma IgammaGradA Igammac
        InplaceAddExt InplaceAddsExt InplaceClampScalar InplaceClampTensor InplaceDiv InplaceDivMod InplaceDivMods
        InplaceDivs InplaceElu InplaceErfinv InplaceExp InplaceFloor InplaceFloorDivide InplaceFloorDivides
        InplaceHardtanh InplaceLog InplaceMaskedFillScalar InplaceMaskedFillTensor InplaceMul InplaceMuls
        InplaceReLU InplaceRemainderTensorScalar InplaceRemainderTensorTensor InplaceSiLU InplaceSigmoid
        InplaceSign InplaceSubExt InplaceSubScalar InplaceTanh InplaceThreshold Inv InvGrad Invert IsClose
        IsFinite IsInf IsNan IsNegInf Lcm LeakyReLUExt LeakyReLUGradExt LeakyRelu LeftShift Lerp LerpScalar Less
        LessEqual LessScalar Lgamma Log Log10 Log1p Log2 LogAddExp LogAddExp2 LogGrad LogSigmoid LogSigmoidGrad
        LogicalAnd LogicalNot LogicalOr LogicalXor Logit LogitGrad MaskedFill MaskedFillScalar MatrixBandPart
        Maximum MaximumGrad MaximumGradGrad MeanGrad MinMaxUpdatePerChannel MinMaxUpdatePerLayer Minimum
        MinimumGrad MinimumGradGrad Mish MishExt MishGradExt Mod Mul MulNoNan Muls Mvlgamma MvlgammaGrad NanToNum
        NeScalar Neg NegGrad NextAfter NotEqual NpuGelu PReLU PReLUGrad PRelu PReluGrad Polar Polygamma
        PopulationCount Pow PowScalarTensor PowTensorScalar Quant QuantV2 RGBToHSV ReLU ReLU6 ReLU6Grad ReLUV3
        RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad ReluGradV2 RemainderScalarTensor
        RemainderTensorScalar RemainderTensorTensor RightShift RingAttentionUpdate Rint RotaryPositionEmbedding
        RotaryPositionEmbeddingGrad Round Rsqrt RsqrtGrad ScaleGrad SeLU SeLUExt Select SelectV2 Selu SeluGrad
        Shrink SiLU SiLUGrad Sigmoid SigmoidGrad Sign SimpleMeanGrad Sin Sinc Sinh SoftShrink SoftShrinkGrad
        Softplus SoftplusExt SoftplusGrad SoftplusGradExt Softsign SparseAdd SparseAddGrad SparseDenseCwiseAdd
        SparseDenseCwiseDiv SparseDenseCwiseMul SparseMatrixAdd SparseMatrixMul SparseSparseMaximum
        SparseSparseMinimum SparseTensorDenseAdd Sqrt SqrtGrad Square SquaredDifference Sub SubExt SubScalar
        Subscalar SwiGLUDynamicQuant Swiglu SwigluGrad Tan Tanh TanhGrad Threshold ThresholdGrad TraceGrad
        TraceV2Grad Tril TrilExt Triu Trunc TruncateDiv TruncateMod WtsARQ XLogYScalarOther XLogYScalarSelf Xdivy
        Xlogy Zeta
    """,
    "copy": """
        Assign BatchToSpace BatchToSpaceD BatchToSpaceND BatchToSpaceNDD BatchToSpaceNDV2 BroadcastTo BroadcastToD
        COO2CSR CSR2COO CSRSparseMatrixToDense CSRSparseMatrixToSparseTensor Cast ChannelShuffle Chunk Clone
        Concat ConcatD ConfusionTransposeD ConjugateTranspose ConstantPadND Contiguous Copy CusTranspose02314
        DenseToCSRSparseMatrix DenseToDenseSetOperation DenseToSparseSetOperation DepthToSpace Diag DiagD DiagExt
        DiagPart DiagPartD Diagonal DynamicAssign DynamicBroadcastTo FFTShapeCopy FFTShift FillDiagonal Five2Four
        FormatCast Four2Five IFFTShift Imag InplaceCopy InplaceFillDiagonal InvertPermutation MatrixDiag
        MatrixDiagD MatrixDiagPart MatrixDiagPartD MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiag MatrixSetDiagD
        MatrixSetDiagV3 Meshgrid MirrorPad MirrorPadGrad MixedPrecisionCast Pack Pad PadAndShift PadD PadV3
        PadV3Grad Padding ParallelConcat PixelShuffle QuantDTypeCast RaggedTensorToSparse RaggedTensorToTensor
        Real ReflectionPad1D ReflectionPad1DGrad ReflectionPad2D ReflectionPad2DGrad ReflectionPad3D
        ReflectionPad3DGrad Repeat RepeatInterleaveInt RepeatInterleaveTensor ReplicationPad1D
        ReplicationPad1DGrad ReplicationPad2D ReplicationPad2DGrad ReplicationPad3D ReplicationPad3DGrad
        ReverseSequence ReverseV2 ReverseV2D Roll Slice SliceDV2 SliceExt SliceGrad SpaceToBatch SpaceToBatchD
        SpaceToBatchND SpaceToBatchNDD SpaceToDepth SparseConcat SparseFillEmptyRows SparseFillEmptyRowsGrad
        SparseMatrixTranspose SparseReshape SparseSlice SparseSliceGrad SparseSplit SparseTensorToCSRSparseMatrix
        Split SplitD SplitTensor SplitV SplitVD SplitWithSize Stack StackExt StridedRead StridedSlice
        StridedSliceD StridedSliceGrad StridedWrite TensorMove Tile TileD ToDtype ToOther TransData TransDataRNN
        TransShape Transpose TransposeD TypeAs Unpack Unstack UnstackWithNum
    """,
    "fill": """
        Arange AtomicAddrClean BartlettWindow BlackmanWindow ClearZero DynamicAtomicAddrClean Eps Eye FFTFreq Fill
        FillD FillScalar FillTensor FillV2 FillV2D Fills FullLike GenerateEodMask GenerateEodMaskV2 HammingWindow
        InplaceFillScalar InplaceFillTensor InplaceZero LinSpace LinSpaceD LinSpaceExt LogSpace MemSet NewFull
        NewOnes NewZeros OneHot OneHotD OneHotExt Ones OnesLike OnesLikeExt RFFTFreq RaggedRange Range RangeD
        RangeV2 ScalarToTensor SequenceMask TrilIndices TriuIndices Zeros ZerosLike ZerosLikeExt
    """,
    "random": """
        Bernoulli BernoulliExt Cauchy DropOutGenMaskV4 Dropout Dropout2D Dropout2dExt Dropout3D DropoutExt
        DropoutGenMask DropoutGenMaskExt DropoutGenMaskV3 FuncDropoutExt Gamma InplaceBernoulliScalar
        InplaceBernoulliTensor InplaceExponential InplaceNormal InplaceRandom InplaceUniform LogNormalReverse
        LogUniformCandidateSampler Multinomial MultinomialExt MultinomialWithReplacement NonDeterministicInts
        NormalFloatFloat NormalFloatTensor NormalTensorFloat NormalTensorTensor ParameterizedTruncatedNormal
        Poisson RandExt RandInt RandIntLike RandLikeExt Randn RandnLike RandomCategorical RandomChoiceWithMask
        RandomGamma RandomGammaGrad RandomPoisson RandomShuffle Randperm RandpermExt RandpermV2 StandardLaplace
        StandardNormal StatelessDropOutGenMask TruncatedNormal Uniform UniformCandidateSampler UniformExt
        UniformInt UniformReal
    """,
    "reduction": """
        AllFinite Any AnyExt ArgMaxD ArgMaxExt ArgMaxV2 ArgMaxWithValue ArgMin ArgMinD ArgMinExt ArgMinWithValue
        Argmax Argmin ArgminV2 BiasAddGrad CSRReduceSum CheckValid ClipByNorm ClipByNormNoDivSum ConfusionMatrix
        CountNonZero CusFusedAbsMax1 EqualCount EqualExt EuclideanNorm EuclideanNormD FloatStatus IFMR IOU Iou
        KMeansCentroids LinalgVectorNorm LogSumExp LpNorm LpNormV2 Max MaxDim MeanExt Min MinDim Nansum Norm
        NuclearNorm ProdExt ReduceAll ReduceAllD ReduceAny ReduceAnyD ReduceMax ReduceMaxD ReduceMean ReduceMeanD
        ReduceMin ReduceMinD ReduceProd ReduceProdD ReduceStd ReduceSum ReduceSumD Renorm RotatedIou SilentCheckV2
        SilentCheckV3 SquareSumAll SquareSumV1 SquareSumV2 Std StdMean SumExt Trace TraceExt TraceV2 Var VarMean
    """,
    "norm": """
        AddLayerNormV2 AddRmsNorm AddRmsNormDynamicQuant AddRmsNormQuantV2 BN2 BN2AddRelu BN2Relu BNInfer
        BNInference BNInferenceD BNTrainingReduce BNTrainingUpdate BNTrainingUpdateV2 BNTrainingUpdateV3 BatchNorm
        BatchNormElemt BatchNormExt BatchNormFold BatchNormFold2 BatchNormFold2D BatchNormFoldD
        BatchNormGatherStatsWithCounts BatchNormStats BatchNormWithActivation BatchNormWithAddAndActivation
        Centralization FusedBN1 FusedBN2 FusedBatchNorm FusedBatchNormEx GroupNorm InstanceNorm InstanceNormV2
        L2Normalize LRN LayerNorm LayerNormExt LayerNormV3 RmsNorm RmsNormQuant SyncBatchNorm
    """,
    "norm backward": """
        AddLayerNormGrad BNGrad1 BNGrad2 BNGrad3 BNInferGrad BNTrainingReduceGrad BNTrainingUpdateGrad
        BatchNormElemtGrad BatchNormFold2Grad BatchNormFold2GradD BatchNormFold2GradReduce BatchNormFoldGrad
        BatchNormFoldGradD BatchNormGrad BatchNormGradExt BatchNormGradGrad BatchNormGradWithActivation
        BatchNormGradWithAddAndActivation BatchNormReduceGrad FusedBN3 GroupNormGrad InstanceNormGrad
        InstanceNormV2Grad L2NormalizeGrad LRNGrad LayerNormBetaGammaBackprop LayerNormBetaGammaBackpropV2
        LayerNormGrad LayerNormGradExt LayerNormGradGrad LayerNormGradV3 LayerNormXBackprop LayerNormXBackpropV2
        RmsNormGrad SyncBatchNormGrad
    """,
    "softmax": """
        ConfusionSoftmaxGrad LogSoftmax LogSoftmaxExt LogSoftmaxGrad LogSoftmaxV2 Softmax SoftmaxBackward
        SoftmaxGrad SoftmaxGradExt SoftmaxGradFusion SoftmaxV2 SoftmaxV2WithDropOutDoMaskV3D
        SoftmaxV2WithDropoutDoMaskV3 SparseMatrixSoftmax SparseSoftmax
    """,
    "pooling": """
        AdaptiveAvgPool1D AdaptiveAvgPool2D AdaptiveAvgPool2DExt AdaptiveAvgPool2DGrad AdaptiveAvgPool2DGradExt
        AdaptiveAvgPool3D AdaptiveAvgPool3DExt AdaptiveAvgPool3DGrad AdaptiveAvgPool3DGradExt AdaptiveMaxPool1D
        AdaptiveMaxPool2D AdaptiveMaxPool2DGrad AdaptiveMaxPool2d AdaptiveMaxPool3D AdaptiveMaxPool3DGrad
        AffineGrid AffineGridGrad AvgPool AvgPool1D AvgPool2D AvgPool2DGrad AvgPool3D AvgPool3DD AvgPool3DExt
        AvgPool3DGrad AvgPool3DGradD AvgPool3DGradExt AvgPoolGrad AvgPoolGradD AvgPoolGradGe AvgPoolGradV1
        AvgPoolGradVm AvgPoolV1 CropAndResize CropAndResizeD CropAndResizeGradBoxes CropAndResizeGradImage
        DynamicResizeNearestNeighbor ExtractGlimpse FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool
        FractionalMaxPool3DGradWithFixedKsize FractionalMaxPool3DWithFixedKsize FractionalMaxPoolGrad
        FractionalMaxPoolGradWithFixedKsize FractionalMaxPoolWithFixedKsize FuncMaxPool2D GridSampler2D
        GridSampler2DGrad GridSampler3D GridSampler3DGrad MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad
        MaxPool3DGradGradD MaxPool3DGradWithArgmax MaxPool3DWithArgmax MaxPoolExt2 MaxPoolGrad MaxPoolGradGrad
        MaxPoolGradGradWithArgmax MaxPoolGradV1 MaxPoolGradWithArgmax MaxPoolGradWithArgmaxV2
        MaxPoolGradWithIndices MaxPoolGradWithMask MaxPoolV1 MaxPoolV2 MaxPoolWithArgmax MaxPoolWithArgmaxV2
        MaxPoolWithIndices MaxPoolWithMask MaxUnpool2D MaxUnpool2DExt MaxUnpool2DGrad MaxUnpool3D MaxUnpool3DGrad
        PSROIPooling PSROIPoolingGrad PSROIPoolingGradV2D PSROIPoolingV2 ParallelResizeBilinear
        ParallelResizeBilinearGrad Pooling PsROIPooling PsROIPoolingGrad ROIAlign ROIAlignGrad ResizeArea
        ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeBilinearV2 ResizeBilinearV2D
        ResizeBilinearV2Grad ResizeD ResizeGradD ResizeLinear1D ResizeLinear1DGrad ResizeNearestNeighbor
        ResizeNearestNeighborGrad ResizeNearestNeighborV2 ResizeNearestNeighborV2D ResizeNearestNeighborV2Grad
        ResizeNearestNeighborV2GradD ResizeV2 ResizeV2Grad ScaleAndTranslate ScaleAndTranslateGrad
        SyncResizeBilinearV2 SyncResizeBilinearV2Grad UpsampleBicubic2D UpsampleBicubic2DGrad UpsampleBilinear2D
        UpsampleBilinear2DGrad UpsampleLinear1D UpsampleLinear1DGrad UpsampleNearest1D UpsampleNearest1DGrad
        UpsampleNearest2D UpsampleNearest2DGrad UpsampleNearest3D UpsampleNearest3DGrad UpsampleTrilinear3D
        UpsampleTrilinear3DGrad
    """,
    "lookup": """
        Bucketize CSRGather Embedding EmbeddingLookup EmbeddingLookupProxy Gather GatherD GatherNd GatherNdExt
        GatherV2 GatherV2D InTopK InTopKD Index IndexSelect InnerIndex InnerMoeTokenUnpermute InnerNonZero
        ListDiff LowerBound MapCacheIdx MaskedSelect MoeFinalizeRouting MoeInitRouting MoeInitRoutingQuantV2
        MoeInitRoutingV2 MoeTokenPermute MoeTokenUnpermute NonZero NonZeroExt NonZeroWithValue SearchSorted
        SparseGatherV2 Take UnravelIndex UpperBound
    """,
    "scatter": """
        CacheSwapTable CopyWithSlice DynamicStitch EmbeddingDenseBackward EmbeddingLookupCommGrad GatherDGrad
        GatherDGradV2 IndexAdd IndexAddExt IndexFill IndexFillScalar IndexFillTensor IndexPut InnerInplaceIndexPut
        InplaceAdd InplaceAddD InplaceIndexAdd InplaceIndexAddExt InplaceIndexCopy InplaceIndexFillScalar
        InplaceIndexFillTensor InplaceIndexPut InplaceMaskedScatter InplacePut InplaceScatterAdd InplaceScatterSrc
        InplaceScatterSrcReduce InplaceScatterValue InplaceScatterValueReduce InplaceSub InplaceSubD InplaceUpdate
        InplaceUpdateD InplaceUpdateV2 KVCacheMgr KVCacheScatterUpdate KvScaleCache MaskedScatter MaskedSelectGrad
        MedianGrad MoeTokenPermuteGrad MoeTokenUnpermuteGrad RepeatInterleaveGrad ReshapeAndCache RowTensorAdd
        Scatter ScatterAdd ScatterAddExt ScatterAddWithAxis ScatterDiv ScatterMax ScatterMin ScatterMul ScatterNd
        ScatterNdAdd ScatterNdD ScatterNdDiv ScatterNdMax ScatterNdMin ScatterNdMul ScatterNdSub ScatterNdUpdate
        ScatterSub ScatterUpdate ScatterValue SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum
        SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanWithNumSegments SparseSegmentSqrtN
        SparseSegmentSqrtNGrad SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
        SparseSegmentSumWithNumSegments SparseToDense SparseToDenseV2 StridedSliceAssign StridedSliceAssignD
        SubAndFilter TensorCopySlices TensorScatterAdd TensorScatterDiv TensorScatterElements TensorScatterMax
        TensorScatterMin TensorScatterMul TensorScatterSub TensorScatterUpdate UniqueGrad UnsortedSegmentMax
        UnsortedSegmentMaxD UnsortedSegmentMin UnsortedSegmentMinD UnsortedSegmentProd UnsortedSegmentProdD
        UnsortedSegmentSum UnsortedSegmentSumD UpdateCache VmapStackAssign VmapUnstackAssign
    """,
    "sort": """
        ArgSort Bincount BincountExt CTCGreedyDecoder Coalesce CombinedNonMaxSuppression CumProd CumSum Cummax
        Cummin CumminExt Cumprod CumprodD Cumsum CumsumD CumsumExt CumulativeLogsumexp CumulativeLogsumexpD
        FusedAddTopKDiv GroupTopk HistcExt Histogram HistogramFixedWidth HistogramFixedWidthD InnerUnique Kthvalue
        Median MedianDim MedianExt MoeComputeExpertTokens MoeGatingTopKSoftmax NMSWithMask NonMaxSuppressionV3
        NonMaxSuppressionWithOverlaps NthElement Quantile RpnProposals RpnProposalsD Sort SortExt SparseReorder
        TopK TopKRouter TopPRouter TopkExt Unique Unique2 UniqueConsecutive UniqueDim UniqueWithPad
    """,
    "loss": """
        BCEWithLogitsLoss BinaryCrossEntropy BinaryCrossEntropyGrad BinaryCrossEntropyWithLogitsBackward CTCLoss
        CTCLossV2 CTCLossV2Grad CosineEmbeddingLoss CrossEntropyLoss CrossEntropyLossGrad KLDiv KLDivGrad
        KLDivLoss KLDivLossGrad KlDivLossGrad L1LossBackwardExt L1LossExt L2Loss MSELossExt MSELossGradExt
        MultiMarginLoss MultiMarginLossGrad MultilabelMarginLoss MultilabelMarginLossGrad NLLLoss NLLLoss2d
        NLLLoss2dGrad NLLLossGrad RNNTLoss SigmoidCrossEntropyWithLogits SigmoidCrossEntropyWithLogitsGrad
        SigmoidCrossEntropyWithLogitsV2 SmoothL1Loss SmoothL1LossGrad SmoothL1LossGradV2 SmoothL1LossV2
        SoftMarginLoss SoftMarginLossGrad SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
        SparseSoftmaxCrossEntropyWithLogitsV2 TripletMarginLoss
    """,
    "optimizer": """
        Adam AdamApplyOne AdamApplyOneAssign AdamApplyOneWithDecay AdamApplyOneWithDecayAssign AdamNoUpdateParam
        AdamW AdamWeightDecay ApplyAdaMax ApplyAdaMaxD ApplyAdadelta ApplyAdadeltaD ApplyAdagrad ApplyAdagradD
        ApplyAdagradDA ApplyAdagradDAD ApplyAdagradV2 ApplyAdagradV2D ApplyAdam ApplyAdamD ApplyAdamW
        ApplyAdamWithAmsgrad ApplyAdamWithAmsgradD ApplyAdamWithAmsgradV2 ApplyAddSign ApplyAddSignD
        ApplyCamePart1 ApplyCamePart2 ApplyCamePart3 ApplyCamePart4 ApplyCenteredRMSP ApplyCenteredRMSProp
        ApplyCenteredRMSPropD ApplyFtrl ApplyFtrlD ApplyFtrlV2 ApplyFtrlV2D ApplyGradientDescent
        ApplyKerasMomentum ApplyKerasMomentumD ApplyMomentum ApplyMomentumD ApplyPowerSign ApplyPowerSignD
        ApplyProximalAdagrad ApplyProximalAdagradD ApplyProximalGradientDescent ApplyRMSProp ApplyRMSPropD
        CombineMomentum CombineScaleMomentum CombineWeightDecayScaleMomentum FusedAdaFactor
        FusedAdaFactorWithGlobalNorm FusedAdam FusedAdamWeightDecay FusedCastAdamWeightDecay FusedMulApplyMomentum
        FusedScaleApplyMomentum FusedSparseAdam FusedSparseFtrl FusedSparseLazyAdam FusedSparseProximalAdagrad
        FusedWeightApplyMomentum FusedWeightScaleApplyMomentum LARSUpdate Lamb LambApplyOptimizerAssign
        LambApplyWeightAssign LambNextMV LambNextMVWithDecay LambNextMVWithDecayV1 LambNextRight LambUpdateWithLR
        LambUpdateWithLrV2 LarsV2 LarsV2Update Momentum SGD SparseApplyAdadelta SparseApplyAdadeltaD
        SparseApplyAdagrad SparseApplyAdagradD SparseApplyAdagradDA SparseApplyAdagradV2 SparseApplyAdagradV2D
        SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlD SparseApplyFtrlV2 SparseApplyFtrlV2D
        SparseApplyMomentum SparseApplyProximalAdagrad SparseApplyProximalAdagradD
        SparseApplyProximalGradientDescent SparseApplyRMSProp SparseApplyRMSPropD UpdateThorGradient
    """,
    "transfer": """
        CopyToDevice CopyToHost GetMem InplaceToDevice MoveAssign MoveTo PutMem PutMemSignal SignalOp
        SignalWaitUntil ToDevice UpdateToDevice UpdateToRemote memcpy_async
    """,
    "spectral": """
        DCT DCTN FFT FFT2 FFTN FFTOrtho FFTWithSize HFFT HFFT2 HFFTN IDCT IDCTN IFFT IFFT2 IFFTN IHFFT IHFFT2
        IHFFTN IRFFT IRFFT2 IRFFTDouble IRFFTN RFFT RFFT2 RFFTN STFT
    """,
    "solver": """
        Cdist CdistGrad Cholesky CholeskyGrad CholeskyInverse CholeskySolve CholeskyTrsm CusCholeskyTrsm
        CusMatrixCombine DetTriangle Eig Eigh Geqrf LinalgQr LinearSumAssignment LogMatrixDeterminant Lstsq
        LstsqV2 LstsqV2Grad Lu LuSolve LuUnpack LuUnpackGrad MatrixDeterminant MatrixExp MatrixInverse
        MatrixInverseExt MatrixLogarithm MatrixPower MatrixSolve MatrixSolveLs MatrixTriangularSolve Orgqr Ormqr
        Pdist PdistGrad Qr SelfAdjointEig SolveTriangular SolveTriangularGrad SparseMatrixOrderingAMD Svd
        TriangularSolve TridiagonalSolve
    """,
}
