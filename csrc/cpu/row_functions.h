// The functions of rows of one instruction set. Included by instruction_set.h.

template <class T>
constexpr RowFunctions<T> row_functions{
    {SoftmaxPair<T>::forward, SoftmaxPair<T>::backward},
    {UnitRow<T, Map::identity, false>::forward, UnitRow<T, Map::identity, false>::backward},
    {UnitRow<T, Map::elu, false>::forward, UnitRow<T, Map::elu, false>::backward},
    {UnitRow<T, Map::identity, true>::forward, UnitRow<T, Map::identity, true>::backward}};
