"""Translates what nvcc makes of the kernels, its PTX, into C++ that runs on the shim in place of the kernels' sources.

A register becomes a word of 64 bits whose low bits it is; an instruction becomes a statement that reads and writes such
words by functions of shim/ptx.h. A collective instruction is a place for the shim, which wants a warp to meet at one.
"""

import re
import subprocess
from pathlib import Path

from scripts.kernel_resources import find_nvcc
from tests.cuda.compiled import BUILD, INSTANCES, TRANSLATED, headers
from tests.shared import locked

DEVICE = "sm_80"
_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
    "pred": "bool",
}
_SPECIAL = {"%tid.x": "uint32_t(thread_index())", "%ctaid.x": "uint32_t(block_index())"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}
_UNCOUNTED = ("alignas", "uint64_t", "(void)", "executed")
_OF_HALVES = {"mul": "multiply_halves", "add": "add_halves", "fma": "fma_halves", "max": "larger_numbers"}
_FUNCTIONS = {"sqrt": "std::sqrt", "ex2": "std::exp2", "rcp": "1.f / ", "abs": "absolute", "neg": "-", "not": "~"}


def operands(text: str) -> list[str]:
    """Those of an instruction, of which some are lists in braces."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,\s][^,]*", text)]


def _register(name: str) -> str | None:
    """Where a register is held."""
    if name in ("%SP", "%SPL", "%tmp"):
        return name[1:]
    found = re.fullmatch(r"%([a-z]+)(\d+)", name)
    return found and f"{found[1]}[{found[2]}]"


class Kernel:
    """Translates the instructions of one kernel."""

    def __init__(self, name: str, body: str, source: str):
        self.name, self.source, self.places = name, source, 0
        self.lines = []
        block = 0  # where the last block of instructions without a branch begins; what it executes is counted there
        for text in body.splitlines():
            lines = self._line(text.partition("//")[0].strip())
            if any(line.endswith(":;") for line in lines):
                block = self._count(block)
            self.lines += lines
            if any("goto " in line or line == "return;" for line in lines):
                block = self._count(block)
        self._count(block)

    def _count(self, begin: int) -> int:
        """Has the instructions of the lines from ``begin`` on counted when they are executed; returns the next line."""
        first = begin + any(line.endswith(":;") for line in self.lines[begin : begin + 1])
        count = sum(not line.startswith(_UNCOUNTED) for line in self.lines[first:])
        if count:
            self.lines.insert(first, f"executed += {count};")
        return len(self.lines)

    def read(self, operand: str, kind: str) -> str:
        """The operand's value as a C++ expression of the PTX type ``kind``."""
        if operand in _SPECIAL:
            return _SPECIAL[operand]
        if register := _register(operand.removeprefix("!")):
            return f"{'!' * operand.startswith('!')}get<{_TYPES[kind]}>({register})"
        if operand.startswith("0f"):
            return f"get<{_TYPES[kind]}>(0x{operand[2:]}u)"
        if re.fullmatch(r"-?\d+|-?0x\w+", operand):
            return f"{_TYPES[kind]}({operand}ll)"
        if "_param_" in operand or "__local_depot" in operand:
            return f"{_TYPES[kind]}({'parameter' if '_param_' in operand else 'local'})"
        assert "fwp_shared_memory" in operand, f"{self.source}: operand {operand}"
        return f"{_TYPES[kind]}(0)"

    def address(self, operand: str, space: str) -> str:
        name, offset = re.fullmatch(r"\[([^]+]+)(?:\+(-?\d+))?\]", operand).groups()
        at = self.read(name, "u32" if space == "shared" and name.startswith("%r") and name[2] != "d" else "u64")
        return f"{'shared + ' if space == 'shared' else '(char*)'}{at} + {offset or 0}"

    def _line(self, text: str) -> list[str]:
        if label := re.fullmatch(r"\$(\w+):", text):
            return [f"{label[1]}:;"]
        if depot := re.match(r"\.local \.align \d+ \.b8\s+\w+\[(\d+)\]", text):
            return [f"alignas(16) char local[{depot[1]}];", "uint64_t SP, SPL;", "(void)SP;"]
        if registers := re.match(r"\.reg \.\w+\s+%(\w+)<(\d+)>", text):
            return [f"uint64_t {registers[1]}[{registers[2]}];"]
        text = text.removeprefix("{").removesuffix("}").strip("; ") if ";" in text else text
        if not text or text[0] in ".{}()":
            return []
        found = re.fullmatch(r"(?:@(!?%p\d+)\s+)?([a-z][\w.]*)\s*(.*)", text)
        assert found, f"{self.source}: {text}"
        guard, op, rest = found.groups()
        statement = self.statement(op.split("."), operands(rest))
        return [f"if ({self.read(guard, 'pred')}) {{ {statement} }}" if guard else statement]

    def _place(self) -> str:
        self.places += 1
        return f'Site{{"{self.source}", {self.places}}}'

    def statement(self, op: list[str], a: list[str]) -> str:
        match op:
            case ["bra", *_]:
                return f"goto {a[0][1:]};"
            case ["ret"]:
                return "return;"
            case ["trap"]:
                return 'shim::fail("the kernel stopped itself");'
            case ["ld" | "st", *_]:
                return self._memory(op, a)
            case ["mma" | "ldmatrix" | "shfl" | "redux", *_]:
                return self._exchange(op, a)
            case ["bar", "sync"]:
                return f"sync_block({self._place()});"
            case ["bar", "warp", "sync"]:
                return f"sync_warp({self._place()});"
            case ["cp", "async", "wait_all"]:
                return "copies_arrived();"
            case ["cp", "async", *_]:
                name = "start_copy" if a[2] == "16" else "start_copy_of_word"
                given = [self.address(a[0], "shared"), self.address(a[1], "global")]
                return f"{name}({', '.join(given + [self.read(bytes, 's32') for bytes in a[3:]])});"
        if op == ["mov", "b32"] and a[0].startswith("{"):
            low, high = map(_register, operands(a[0][1:-1]))
            word = self.read(a[1], "u32")
            return f"set({low}, uint16_t({word})); set({high}, uint16_t({word} >> 16));"
        return f"set({_register(a[0])}, {self.value(op, a[1:])});"

    def _exchange(self, op: list[str], a: list[str]) -> str:
        """What the lanes of a warp do together."""
        if op[0] == "shfl":
            (to, holds), name = a[0].split("|"), {"bfly": "shuffle_xor", "idx": "shuffle"}[op[2]]
            given = f"{self.read(a[1], 'f32')}, {self.read(a[2], 's32')}, {self._place()}"
            return f"set({_register(to)}, {name}({given})); set({_register(holds)}, true);"
        if op == ["redux", "sync", "max", "u32"]:  # kernels order floats by it
            return f"set({_register(a[0])}, largest_of_warp({self.read(a[1], 'f32')}, {self._place()}));"
        end = "".join(f"set({_register(n)}, found[{i}]);" for i, n in enumerate(operands(a[0][1:-1])))
        if op[0] == "ldmatrix":
            name = "load_matrices_transposed" if "trans" in op else "load_matrices"
            return f"{{ uint32_t found[4]; {name}(found, {self.address(a[1], 'shared')}, {self._place()}); {end} }}"
        lists = zip(a[1:], ("b32", "b32", "f32"), strict=True)
        x, y, c = ([self.read(n, kind) for n in operands(names[1:-1])] for names, kind in lists)
        given = f"{{{', '.join(x)}}}, {', '.join(y)}, {self._place()}"
        return f"{{ float found[4] = {{{', '.join(c)}}}; mma_half(found, {given}); {end} }}"

    def _memory(self, op: list[str], a: list[str]) -> str:
        space, kind = op[1], _TYPES[op[-1]]
        where, names = (a[1], a[0]) if op[0] == "ld" else (a[0], a[1])
        names = operands(names[1:-1]) if names.startswith("{") else [names]
        moves = (
            f"set({_register(n)}, at[{i}]);" if op[0] == "ld" else f"at[{i}] = {self.read(n, op[-1])};"
            for i, n in enumerate(names)
        )
        return f"{{ auto* at = aligned<{kind}, {len(names)}>({self.address(where, space)}); {''.join(moves)} }}"

    def value(self, op: list[str], a: list[str]) -> str:
        """What an instruction without a side effect computes."""
        if op[0] == "cvt":
            return self._converted(op, a)
        if op[0] == "mov" and a[0].startswith("{"):
            low, high = (self.read(one, "u16") for one in operands(a[0][1:-1]))
            return f"uint32_t({low}) | uint32_t({high}) << 16"
        kind = op[-1]
        if kind == "f16x2":
            x = [self.read(one, "u32") for one in a]
            if op[:2] == ["set", "neu"]:
                return f"not_equal_halves({', '.join(x)})"
            assert "NaN" not in op, f"{self.source}: {op}"
            computed = f"{_OF_HALVES[op[0]]}({', '.join(x)})"
            return f"positive_halves({computed})" if "relu" in op else computed
        if kind == "bf16x2":
            assert op == ["fma", "rn", "bf16x2"], f"{self.source}: {op}"
            return f"fma_bfloat16s({', '.join(self.read(one, 'u32') for one in a)})"
        number = "u" + kind[1:] if kind[0] == "s" and op[0] in ("add", "sub", "mul", "mad", "shl") else kind
        x = [self.read(one, number) for one in a]
        match op:
            case ["mov", _]:
                return x[0]
            case ["cvta", *way]:
                if "shared" not in way:
                    return x[0]
                return f"{x[0]} - (uint64_t)shared" if "to" in way else f"{x[0]} + (uint64_t)shared"
            case ["mul", "wide", _]:
                wide = _TYPES[kind[0] + "64"]
                return f"{wide}({self.read(a[0], kind)}) * {wide}({self.read(a[1], kind)})"
            case ["mul", "hi", _]:
                return f"{_TYPES[kind]}((int64_t({self.read(a[0], kind)}) * {self.read(a[1], kind)}) >> 32)"
            case ["mad", "lo", _]:
                return f"{x[0]} * {x[1]} + {x[2]}"
            case ["fma", "rn", _]:
                return f"std::fmaf({x[0]}, {x[1]}, {x[2]})"
            case ["fma", "rm", _]:
                return f"fma_down({x[0]}, {x[1]}, {x[2]})"
            case ["shl" | "shr", _]:
                return f"shift_{'left' if op[0] == 'shl' else 'right'}({x[0]}, {self.read(a[1], 'u32')})"
            case ["selp", _]:
                return f"{self.read(a[2], 'pred')} ? {x[0]} : {x[1]}"
            case ["setp", compared, _]:
                plain = f"{x[0]} {_COMPARED[compared[:2]]} {x[1]}"
                if kind != "f32":
                    return plain
                either = f"unordered({x[0]}, {x[1]})"  # NaN is neither less than a number, nor equal, nor greater
                return f"{either} || {plain}" if compared[2:] == "u" else f"!{either} && {plain}"
            case ["min" | "max", _]:
                return f"{'std::f' if kind == 'f32' else 'std::'}{op[0]}({x[0]}, {x[1]})"
            case ["bfi", _]:
                return f"with_bits({', '.join(x)})"
            case ["prmt", _]:
                return f"chosen_bytes({x[0]}, {x[1]}, {x[2]})"
            case ["lop3", _]:
                return f"of_three_words({', '.join(x)})"
            case ["not", "pred"]:
                return f"!{x[0]}"
        if op[0] in _BINARY:
            return f"{x[0]} {_BINARY[op[0]]} {x[1]}"
        return f"{_TYPES[kind]}({_FUNCTIONS[op[0]]}({x[0]}))"

    def _converted(self, op: list[str], a: list[str]) -> str:
        to, of = op[-2:]
        match to, of:
            case "f32", "f16":
                return f"from_half({self.read(a[0], 'u16')})"
            case (("bf16x2" | "f16x2"), _):
                name = "pack_halves" if to == "f16x2" else "pack_bfloat16s"
                return f"{name}({self.read(a[1], of)}, {self.read(a[0], of)})"
            case (("f16" | "bf16"), _):
                return f"{'to_half' if to == 'f16' else 'to_bfloat16'}({self.read(a[0], of)})"
            case "f32", "f32":
                assert "sat" in op
                return f"saturated({self.read(a[0], of)})"
        assert of != "f32", f"{self.source}: {op}"
        return f"{_TYPES[to]}({self.read(a[0], of)})"


def translated(ptx: str, source: str) -> str:
    """The C++ of all kernels of a file, which puts them on the shim's list."""
    found = ['#include "shim/ptx.h"', "using namespace fwp::gpu;"]
    for name, body in re.findall(r"\.entry (\w+)\(.*?\n\{\n(.*?)\n\}\n(?!\s*// end inline asm)", ptx, re.S):
        begin = f"static void run_{name}(const void* parameter) {{\nchar* const shared = shim::shared(0);"
        begin += "\nuint64_t tmp;\n(void)shared, (void)tmp;\nshim::Executed executed;"
        lines = Kernel(name, body, source).lines
        found.append(
            "\n".join([begin, *lines, "}", f'static const shim::Translation of_{name}("{name}", run_{name});'])
        )
    return "\n".join(found) + "\n"


def sources() -> tuple[Path, ...]:
    """The C++ of every source of kernels; nvcc runs only after a change of one."""
    nvcc = find_nvcc()
    assert nvcc, "no nvcc"
    found = []
    for source in sorted(INSTANCES.glob("*.cu")):
        state = headers()
        state.update(source.read_bytes() + Path(__file__).read_bytes())
        target = BUILD / "ptx" / f"{TRANSLATED}{source.stem}.cpp"
        mark = f"// {state.hexdigest()}\n"
        with locked(BUILD / "ptx" / ".lock"):
            if not target.exists() or not target.read_text().startswith(mark):
                ptx = target.with_suffix(".ptx")
                options = ["-std=c++17", "-O3", "--expt-relaxed-constexpr", f"-arch={DEVICE}", "-ptx"]
                subprocess.run([nvcc, *options, source, "-o", ptx], check=True)
                target.write_text(mark + translated(ptx.read_text(), f"{source.stem}.ptx"))
        found.append(target)
    return tuple(found)
