"""The authors' published losses on the synthetic retrieval task, for comparison with ours.

Source: the 320 logs in synthetic/logs of https://github.com/ischlag/fast-weight-transformers (the code of Schlag, Irie
and Schmidhuber, ICML 2021), one seed each. A cell is LOSS@HUNDREDS: the best evaluation loss of the run, and the
hundreds of steps after which it was reached. A * means that the run ended because the loss was at most 0.001, "nan"
that every loss was NaN, and "-" that the log is cut off. Without @, the loss was flat from the start.
"""

from typing import NamedTuple

_SETTINGS = {
    1: """
  S      softmax      elu-sum    dpfp1-sum    dpfp2-sum    dpfp3-sum  favor64-sum favor128-sum favor512-sum
 20     .0006@2*     .0009@8*     .0008@1*     .0003@2*     .0005@2*     .1174@18     .0736@26     .0241@28
 40     .0003@1*     .0008@6*     .0003@2*     .0006@2*     .0009@2*     .2740@16     .1752@28     .0754@29
 60     .0001@2*     .0245@31     .0004@2*     .0010@2*     .0005@3*     .4833@18     .4844@15     .4065@14
 80     .0000@2*     .1084@25     .0002@5*     .0006@3*     .0007@3*     .5000@16      .4896@7     .4897@19
100     .0000@2*      .1642@8     .0002@6*     .0005@4*     .0005@4*     .4961@10      .5000@7      .5000@7
120     .0000@2*     .2322@17     .0083@59     .0003@6*     .0005@5*      .5000@4     .5000@10      .5000@5
140     .0000@2*     .2709@14     .0510@39     .0005@6*     .0009@6*      .5000@4      .5000@2      .4921@1
160     .0000@2*     .3011@25     .1020@32    .0004@21*    .0002@14*        .5000        .5000        .5000
180     .0000@3*     .3216@22     .1417@15    .0003@14*     .0004@9*        .5000        .5000        .5000
200     .0000@2*     .3420@13     .1732@14    .0004@21*     .0009@8*        .5000        .5000        .5000
220     .0001@3*     .3513@12     .2094@22    .0007@50*    .0003@11*        .5000        .5000        .5000
240     .0004@2*      .3632@7     .2254@23    .0005@57*    .0005@14*        .5000        .5000        .5000
260     .0000@3*     .3781@22     .2696@43     .0084@55    .0004@17*        .5000        .5000        .5000
280     .0000@5*     .3880@15     .2782@17     .0454@65    .0009@26*        .5000        .5000        .5000
300     .0000@2*     .3971@15     .2855@38     .0681@51    .0003@25*        .5000        .5000        .5000
320     .0000@3*     .3949@15     .2764@15     .1018@22    .0006@47*        .5000        .5000        .5000
340     .0000@4*     .4088@20      .3427@9     .1286@67    .0001@65*        .5000        .5000        .5000
360     .0045@86     .4171@20     .3361@20     .1591@28     .0034@75        .5000        .5000        .5000
380     .0000@4*      .4005@8     .3373@19     .1433@33     .0045@91        .5000        .5000        .5000
400     .0000@4*     .4216@28      .3415@9     .1643@26     .0359@56        .5000        .5000        .5000
420     .0000@4*     .4195@13     .3266@17     .1649@52     .0496@72        .5000        .5000        .5000
440     .0000@5*     .4262@17     .3406@25     .2079@38     .0498@95        .5000        .5000        .5000
460    .0089@133     .4347@18     .3644@26     .2147@23     .0959@70        .5000        .5000        .5000
480     .0000@4*      .4319@5     .3610@16     .2402@15     .1092@84        .5000        .5000        .5000
500     .0089@29     .4287@27      .3864@8      .2756@9     .1691@62        .5000        .5000        .5000
520      .0088@7     .4404@29      .3946@7     .2526@41     .1339@70        .5000        .5000        .5000
540      .0157@5     .4417@36     .3996@14     .2765@36     .1668@82        .5000        .5000        .5000
560      .0299@4     .4478@17     .3983@24     .2944@34     .1779@22        .5000        .5000        .5000
580      .0195@5      .4406@7     .3903@28     .2568@20     .1679@55        .5000        .5000        .5000
600     .0303@15     .4513@14      .4109@5     .3234@22     .1984@54        .5000        .5000        .5000
""",
    2: """
  S  dpfp1-delta  dpfp2-delta    elu-delta    dpfp1-sum    dpfp1-fwm     tanh-fwm favor64-delta favor128-delta
 20     .0008@7*     .0010@6*     .0008@9*      .0973@2     .0404@28     1.50@143     .1023@29     .1079@16
 40     .0010@5*     .0005@6*     .0007@7*      .1039@2     .4915@21     4.83@220     .1832@18     .1629@16
 60      .0049@7     .0005@7*    .0005@30*     .1026@14     .4986@21     9.02@348      .3976@8      .4202@8
 80     .0063@17     .0008@6*     .0940@12      .1133@8     .4999@30    30.29@159      .4927@4      .4862@4
100    .0001@20*            -      .1502@6     .1113@26     .5260@64    42.42@109      .4994@3      .5000@2
120     .0141@35    .0007@26*     .2150@11     .1277@30     .5559@53     56.02@54      .5002@2      .5006@1
140     .0475@24    .0003@15*     .2569@20     .1546@21     .7427@48    59.84@189          nan          nan
160      .1039@8    .0004@15*     .2762@20     .1797@24      1.97@27     74.76@71          nan          nan
180     .1330@38    .0004@17*     .3146@10     .2006@24      2.50@34     85.25@40          nan          nan
200      .1709@9    .0008@30*     .3415@16     .2310@11      1.09@60     95.51@11          nan          nan
""",
}


class Published(NamedTuple):
    """``loss``: the best one of the run, None if every loss was NaN; ``step``: the step at which it was reached."""

    loss: float | None
    step: int
    solved: bool


def _cell(text: str) -> Published | None:
    if text == "-":
        return None
    if text == "nan":
        return Published(None, 0, False)
    loss, _, hundreds = text.partition("@")
    return Published(float(loss), 100 * int(hundreds.rstrip("*") or 0), text.endswith("*"))


def _parsed(table: str) -> dict[tuple[str, int], Published]:
    (_, *models), *rows = (line.split() for line in table.strip().splitlines())
    cells = {(model, int(S)): _cell(text) for S, *texts in rows for model, text in zip(models, texts, strict=True)}
    return {key: cell for key, cell in cells.items() if cell is not None}


PUBLISHED = {setting: _parsed(table) for setting, table in _SETTINGS.items()}


def published(setting: int, model: str, S: int) -> Published | None:
    """Returns the authors' result of a model with S keys, or None if they published none."""
    return PUBLISHED.get(setting, {}).get((model, S))
