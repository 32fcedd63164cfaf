// Types of WebNN's interfaces (https://www.w3.org/TR/webnn/), as `webnn.js` defines them.

type MLPowerPreference = "default" | "high-performance" | "low-power";
type MLNumber = number | bigint;

interface MLContextOptions {
  accelerated?: boolean;
  powerPreference?: MLPowerPreference;
  /** Of earlier drafts; libraries still use it. */
  deviceType?: "cpu" | "gpu" | "npu";
}

interface MLOperandDescriptor {
  dataType: MLOperandDataType;
  shape: readonly number[];
}

/** A dimension of an input that is known only when the graph runs, on `opweave serve --drafts`. */
interface MLDynamicDimension {
  name: string;
  minSize?: number;
  maxSize?: number;
}

interface MLInputDescriptor {
  dataType: MLOperandDataType;
  shape: readonly (number | string | MLDynamicDimension)[];
}

/**
 * The types of `MLOperand.shape`'s elements. A program for `opweave serve --drafts` adds names:
 * `declare global { interface MLSizes { name: string } }`.
 */
interface MLSizes {
  number: number;
}

interface MLTensorDescriptor extends MLOperandDescriptor {
  readable?: boolean;
  writable?: boolean;
}

interface MLContextLostInfo {
  message: string;
}

interface MLTensorLimits {
  dataTypes: MLOperandDataType[];
  rankRange: { min: number; max: number };
}

interface MLOpSupportLimits {
  preferredInputLayout: "nchw" | "nhwc";
  maxTensorByteLength: number;
  input: MLTensorLimits;
  constant: MLTensorLimits;
  output: MLTensorLimits;
  /** Those of an operation: by its operands. */
  [operation: string]: any;
}

type MLNamedTensors = Record<string, MLTensor>;

interface ML {
  createContext(options?: MLContextOptions): Promise<MLContext>;
}

interface MLContext {
  readonly accelerated: boolean;
  readonly lost: Promise<MLContextLostInfo>;
  createTensor(descriptor: MLTensorDescriptor): Promise<MLTensor>;
  createConstantTensor(descriptor: MLOperandDescriptor, inputData: AllowSharedBufferSource): Promise<MLTensor>;
  readTensor(tensor: MLTensor): Promise<ArrayBuffer>;
  readTensor(tensor: MLTensor, outputData: AllowSharedBufferSource): Promise<undefined>;
  writeTensor(tensor: MLTensor, inputData: AllowSharedBufferSource): void;
  dispatch(graph: MLGraph, inputs: MLNamedTensors, outputs: MLNamedTensors): void;
  opSupportLimits(): MLOpSupportLimits;
  /** Keep a graph by key, for the origin of the page. Only on `opweave serve --drafts`, as the next three. */
  saveGraph?(key: string, graph: MLGraph): Promise<void>;
  loadGraph?(key: string): Promise<MLGraph>;
  listGraphs?(): Promise<string[]>;
  deleteGraph?(key: string): Promise<void>;
  destroy(): void;
}

interface MLTensor {
  readonly dataType: MLOperandDataType;
  readonly shape: readonly number[];
  readonly readable: boolean;
  readonly writable: boolean;
  readonly constant: boolean;
  destroy(): void;
}

interface MLOperand {
  readonly dataType: MLOperandDataType;
  readonly shape: readonly MLSizes[keyof MLSizes][];
}

/** The descriptor of an input or an output of a graph; sizes that are known only when it runs have names or formulas. */
interface MLGraphDescriptor {
  readonly dataType: MLOperandDataType;
  readonly shape: readonly MLSizes[keyof MLSizes][];
}

interface MLGraph {
  readonly devices: readonly string[];
  /** Only on `opweave serve --drafts`, as `outputs`. */
  readonly inputs?: Readonly<Record<string, MLGraphDescriptor>>;
  readonly outputs?: Readonly<Record<string, MLGraphDescriptor>>;
  /** Only on `opweave serve --drafts`. */
  computeShapes?(inputShapes: Record<string, readonly number[]>): Record<string, number[]>;
  destroy(): void;
}

interface Navigator {
  readonly ml: ML;
}

declare var ML: { prototype: ML };
declare var MLContext: { prototype: MLContext };
declare var MLTensor: { prototype: MLTensor };
declare var MLOperand: { prototype: MLOperand };
declare var MLGraph: { prototype: MLGraph };
declare var MLGraphBuilder: { prototype: MLGraphBuilder; new (context: MLContext): MLGraphBuilder };

interface MLGraphBuilder {
  input(name: string, descriptor: MLInputDescriptor): MLOperand;
  constant(descriptor: MLOperandDescriptor, buffer: AllowSharedBufferSource): MLOperand;
  constant(dataType: MLOperandDataType, value: MLNumber): MLOperand;
  constant(tensor: MLTensor): MLOperand;
  build(outputs: Record<string, MLOperand>): Promise<MLGraph>;
}

// Made from the declarations of the operations:
