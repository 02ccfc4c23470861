"""The effects of operations, as far as TensorFlow's own registry does not tell them, in one table.

An operation that is not in the table is `UNKNOWN`, which counts as an effect: the operation stays in the training
process, unless the registry calls it stateless (`graphs/registry.py`). So the table has what reads, writes or passes on
a resource, and what the registry calls stateless though it has a state, such as a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """The ways in which an operation depends on more than its inputs, or changes more than its outputs."""

    PURE = "pure"
    CHECK = "check"
    """The operation fails on some inputs, and has no other effect. It may run anywhere: its error belongs to the batch.
    """
    SOURCE = "source"
    """The operation gives the next raw samples."""
    FED = "fed"
    """The operation gives values that Python code of the program passes to the step."""
    HANDLE = "handle"
    """The operation names a resource."""
    READS = "reads"
    WRITES = "writes"
    RANDOM = "random"
    PYTHON = "python"
    OUTSIDE = "outside"
    """The operation prints, writes summaries, reads files, talks to queues and other devices, or keeps something."""
    CALLS = "calls"
    """The operation runs functions, and has their effects."""
    UNKNOWN = "unknown"


STAYS = frozenset({Effect.WRITES, Effect.RANDOM, Effect.PYTHON, Effect.OUTSIDE, Effect.FED, Effect.UNKNOWN})
"""Effects that keep an operation in the training process. READS does so only where something writes the resource."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The effects of a function, and the resources that it reads and writes.

    A resource is the number of the argument that it is passed as, or else its key. detail: operations with effects, for
    people.
    """

    effects: frozenset[Effect]
    reads: frozenset[str | int] = frozenset()
    writes: frozenset[str | int] = frozenset()
    detail: str = ""


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


SOURCES = _named(
    """
    IteratorGetNext IteratorGetNextSync IteratorGetNextAsOptional MultiDeviceIteratorGetNextFromShard QueueDequeue
    QueueDequeueV2 QueueDequeueMany QueueDequeueManyV2 QueueDequeueUpTo QueueDequeueUpToV2 ReaderRead ReaderReadV2
    ReaderReadUpTo ReaderReadUpToV2 RecordInput
    """
)
HANDLES = _named(
    """
    VarHandleOp HashTable HashTableV2 MutableHashTable MutableHashTableV2 MutableHashTableOfTensors
    MutableHashTableOfTensorsV2 MutableDenseHashTable MutableDenseHashTableV2 Iterator IteratorV2 OneShotIterator
    FIFOQueue FIFOQueueV2 RandomShuffleQueue RandomShuffleQueueV2 PaddingFIFOQueue PaddingFIFOQueueV2 TextLineReader
    TextLineReaderV2 TFRecordReader TFRecordReaderV2 WholeFileReader WholeFileReaderV2 IdentityReader IdentityReaderV2
    FixedLengthRecordReader FixedLengthRecordReaderV2 SummaryWriter
    """
)
READS = _named(
    """
    ReadVariableOp VariableV2 Variable ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp
    IsVariableInitialized LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2 LookupTableExport
    LookupTableExportV2
    """
)
"""Operations that read the resource of their first input. A variable of TensorFlow 1 is its own resource."""
WRITES = _named(
    """
    Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp CountUpTo ResourceCountUpTo
    ScatterAdd ScatterDiv ScatterMax ScatterMin ScatterMul ScatterSub ScatterUpdate ScatterNdAdd ScatterNdSub
    ScatterNdUpdate ScatterNdMax ScatterNdMin StridedSliceAssign ResourceStridedSliceAssign ResourceScatterAdd
    ResourceScatterDiv ResourceScatterMax ResourceScatterMin ResourceScatterMul ResourceScatterSub ResourceScatterUpdate
    ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdUpdate ResourceScatterNdMax ResourceScatterNdMin
    DestroyResourceOp DestroyTemporaryVariable LookupTableInsert LookupTableInsertV2 LookupTableRemoveV2
    LookupTableImport LookupTableImportV2 InitializeTable InitializeTableV2 InitializeTableFromTextFile
    InitializeTableFromTextFileV2 InitializeTableFromDataset MakeIterator DeserializeIterator RngReadAndSkip RngSkip
    StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulStandardNormal StatefulStandardNormalV2
    StatefulTruncatedNormal StatefulRandomBinomial ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradDA ApplyAdagradV2
    ApplyAdam ApplyAddSign ApplyCenteredRMSProp ApplyFtrl ApplyFtrlV2 ApplyGradientDescent ApplyMomentum ApplyPowerSign
    ApplyProximalAdagrad ApplyProximalGradientDescent ApplyRMSProp SparseApplyAdadelta SparseApplyAdagrad
    SparseApplyAdagradDA SparseApplyAdagradV2 SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlV2
    SparseApplyMomentum SparseApplyProximalAdagrad SparseApplyProximalGradientDescent SparseApplyRMSProp
    ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdagrad ResourceApplyAdagradDA ResourceApplyAdagradV2
    ResourceApplyAdam ResourceApplyAdamWithAmsgrad ResourceApplyAddSign ResourceApplyCenteredRMSProp ResourceApplyFtrl
    ResourceApplyFtrlV2 ResourceApplyGradientDescent ResourceApplyKerasMomentum ResourceApplyMomentum
    ResourceApplyPowerSign ResourceApplyProximalAdagrad ResourceApplyProximalGradientDescent ResourceApplyRMSProp
    ResourceSparseApplyAdadelta ResourceSparseApplyAdagrad ResourceSparseApplyAdagradDA ResourceSparseApplyAdagradV2
    ResourceSparseApplyCenteredRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2
    ResourceSparseApplyKerasMomentum ResourceSparseApplyMomentum ResourceSparseApplyProximalAdagrad
    ResourceSparseApplyProximalGradientDescent ResourceSparseApplyRMSProp
    """
)
"""Operations that may write the resource of any of their inputs."""
RANDOM = _named(
    """
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomShuffle
    RandomGamma RandomPoisson RandomPoissonV2 Multinomial RandomCrop SampleDistortedBoundingBox
    SampleDistortedBoundingBoxV2 UniformCandidateSampler LogUniformCandidateSampler LearnedUnigramCandidateSampler
    FixedUnigramCandidateSampler ThreadUnsafeUnigramCandidateSampler AllCandidateSampler NonDeterministicInts
    FractionalMaxPool FractionalAvgPool Skipgram NegTrain
    """
)
PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
OUTSIDE = _named(
    """
    Print PrintV2 WriteFile ReadFile MatchingFiles Save SaveV2 SaveSlices Restore RestoreV2 RestoreSlice
    MergeV2Checkpoints WriteSummary WriteScalarSummary WriteHistogramSummary WriteImageSummary WriteAudioSummary
    WriteGraphSummary WriteRawProtoSummary FlushSummaryWriter CloseSummaryWriter CreateSummaryFileWriter ImportEvent
    ScalarSummary HistogramSummary TensorSummary TensorSummaryV2 ImageSummary AudioSummary AudioSummaryV2 MergeSummary
    QueueEnqueue QueueEnqueueV2 QueueEnqueueMany QueueEnqueueManyV2 QueueClose QueueCloseV2 QueueSize QueueSizeV2
    Batch Unbatch UnbatchGrad TensorArrayReadV2 TensorArrayWriteV2 TensorArrayGatherV2 TensorArrayScatterV2
    TensorArrayConcatV2 TensorArraySplitV2 TensorArraySizeV2 TensorArrayCloseV2 InplaceAdd InplaceSub InplaceUpdate
    ImmutableConst GenerateVocabRemapping CustomAggregator GetDeadline Copy CopyHost DebugIdentity
    DebugGradientIdentity DebugNanCount DebugNumericSummary DebugNumericSummaryV2 CopyToMesh CopyToMeshGrad Relayout
    RelayoutLike
    Timestamp Send Recv Abort CollectiveReduce CollectiveReduceV2 CollectiveGather CollectiveGatherV2 NcclAllReduce
    """
)
CALLS = _named(
    """
    PartitionedCall StatefulPartitionedCall If StatelessIf While StatelessWhile Case StatelessCase
    """
)
"""Operations that run functions. Calls are inlined; branches and loops are kept whole."""
CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2", "EnsureShape"})
PURE = _named(
    """
    Const Identity IdentityN StopGradient PreventGradient Snapshot GuaranteeConst Switch RefSwitch Merge RefMerge
    Enter RefEnter Exit RefExit NextIteration RefNextIteration RefIdentity FakeParam DeepCopy ParseTensor
    SerializeTensor DecodeProtoV2 EncodeProto AsString StringFormat Fingerprint OneHot LowerBound UpperBound Cast
    Reshape Squeeze ExpandDims Shape ShapeN Size Rank Fill ZerosLike Concat ConcatV2 Split SplitV Pack Unpack Slice
    StridedSlice Tile BroadcastTo Pad PadV2 MirrorPad Transpose ConjugateTranspose ReverseSequence Roll Gather
    GatherV2 GatherNd ScatterNd TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin
    TensorScatterUpdate TensorStridedSliceUpdate DynamicPartition DynamicStitch ParallelDynamicStitch Select
    SelectV2 Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 ListDiff MatrixDiag MatrixDiagV3 MatrixDiagPart
    MatrixDiagPartV3 MatrixBandPart MatrixSetDiag MatrixSetDiagV3 SpaceToBatchND BatchToSpaceND EditDistance AddN
    Equal NotEqual Einsum SparseConcat SparseFillEmptyRows SparseReorder SparseSlice SparseSplit SparseToDense
    SparseTensorDenseMatMul SerializeSparse SerializeManySparse DeserializeSparse DeserializeManySparse RaggedGather
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant RaggedTensorFromVariant RaggedFillEmptyRows
    RaggedTensorToVariantGradient TensorListReserve TensorListStack TensorListFromTensor TensorListGetItem
    TensorListSetItem TensorListPushBack TensorListPopBack TensorListLength TensorListElementShape
    TensorListConcatV2 TensorListGather TensorListScatterV2 TensorListResize EmptyTensorList TensorListConcatLists
    TensorListSplit OptionalFromValue OptionalNone OptionalHasValue OptionalGetValue StatelessShuffle
    StatelessRandomGetAlg
    """
)

_TABLE: dict[str, Effect] = {
    **dict.fromkeys(PURE, Effect.PURE),
    **dict.fromkeys(CHECKS, Effect.CHECK),
    **dict.fromkeys(SOURCES, Effect.SOURCE),
    **dict.fromkeys(("Placeholder", "PlaceholderV2", "PlaceholderWithDefault"), Effect.FED),
    **dict.fromkeys(HANDLES, Effect.HANDLE),
    **dict.fromkeys(READS, Effect.READS),
    **dict.fromkeys(WRITES, Effect.WRITES),
    **dict.fromkeys(RANDOM, Effect.RANDOM),
    **dict.fromkeys(PYTHON, Effect.PYTHON),
    **dict.fromkeys(OUTSIDE, Effect.OUTSIDE),
    **dict.fromkeys(CALLS, Effect.CALLS),
}


def effect_of(op: str) -> Effect:
    """Return the effect of an operation by its type."""
    return _TABLE.get(op, Effect.UNKNOWN)


def known() -> frozenset[str]:
    """Return the types of operations that the table knows."""
    return frozenset(_TABLE)
