"""Where does a masked atom of a product come from? RXNMapper's ALBERT on reactions whose mapping chemists agreed on."""
